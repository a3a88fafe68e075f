// Charts of series over time: one cross-hair for all, drawn only while they are in sight.

import uPlot from "./vendor/uPlot.esm.js";
import { ask, known, own } from "./data.js";
import { range } from "./drawing.js";
import { arrange, button, dot, element } from "./elements.js";
import { moment, number, shown, ticksOf } from "./figures.js";
import { enlarged, pinned, placing } from "./placing.js";
import { powers, steps } from "./scales.js";
import { asCsv, asPng, css, FAINT, pieces, saveDrawn, saved } from "./saving.js";

export const MOST_CHARTS = 300;
const [HEIGHT, LARGE_HEIGHT] = [220, 440];
const BAND = "2e"; // how much is seen of it
const LIVE_MS = 1000;
const REDRAWN_TICKS = 5;
const SETTLED_MS = 120;
const MOST_FIGURES = 6; // lines of which the last value stands below a chart
const NEAR_PX = 12;
const LEAST_AXIS_PX = 70; // so that charts below each other begin at one place

// Series as they stand on the page: those that are pinned, then what scripts log, then by place and name.
export function inOrder(titles) {
  const first = pinned();
  const at = (name) => (first.includes(name) ? first.indexOf(name) : first.length);
  return Object.entries(titles).sort(([a, one], [b, other]) => at(a) - at(b) || one.place - other.place || a.localeCompare(b));
}

// The runs of a line: one, or those of which it is the mean.
const runsOf = ({ id }) => id.split(",");
const isMean = ({ id }) => id.includes(",");

// A column of values for each line at the moments of a chart, as uPlot wants it: undefined where a line has none.
const column = (length, at, values) => {
  if (!at) return values;
  const made = new Array(length).fill(undefined);
  at.forEach((place, index) => { made[place] = values[index]; });
  return made;
};

// A chart with more points of its lines: those that come after the last that a line had.
function longer([times, ...columns], added) {
  if (added.every(([at]) => !at.length)) return [times, ...columns];
  const moments = [...new Set([...times, ...added.flatMap(([at]) => at)])].sort((a, b) => a - b);
  const place = new Map(moments.map((time, at) => [time, at]));
  const before = times.map((time) => place.get(time));
  return [moments, ...columns.map((values, line) => {
    const made = column(moments.length, before, values);
    added[line][0].forEach((time, at) => { made[place.get(time)] = added[line][1][at]; });
    return made;
  })];
}

// How wide the y axis is: its longest label is shown whole.
function widthOf(plot, texts, at) {
  const { font, gap, ticks } = plot.axes[at];
  plot.ctx.font = font[0];
  const longest = Math.max(0, ...(texts || []).map((text) => plot.ctx.measureText(text).width));
  return Math.max(LEAST_AXIS_PX, longest / devicePixelRatio + gap + ticks.size);
}

// Ticks of numbers however large or small: uPlot's own steps reach from 1e-32 to 1e32.
const ticksBy = (apart_px, along, made) => ({ incrs: [Number.MAX_VALUE], splits: (plot, _, low, high) => made(low, high, plot[along] / apart_px) });
const logTicks = (low, high, wanted) => (high > 200 * low ? powers(low, high, wanted) : powers(low, high, 9).flatMap((power) => [power, 2 * power, 5 * power]).filter((tick) => tick <= high));

// Moments as everywhere on the page; the date where it changes.
function clockOf(ticks, step) {
  const texts = ticks.map((tick) => moment(tick).split(" "));
  return texts.map(([date, time], at) => time.slice(0, step < 60 ? 8 : 5) + (date === texts[at - 1]?.[0] ? "" : `\n${date}`));
}

// Values without neighbours: no line leads to them.
const alone = (values) => pieces(values).filter((piece) => piece.length === 1).flat();

// Whether a moment lies between a line's first point and its last, but for a few pixels.
function inside(plot, line, left) {
  const [times, values] = [plot.data[0], plot.data[line]];
  const first = values.findIndex((value) => value !== undefined);
  if (first < 0) return false;
  const last = values.findLastIndex((value) => value !== undefined);
  return left > plot.valToPos(times[first], "x") - NEAR_PX && left < plot.valToPos(times[last], "x") + NEAR_PX;
}

// What the y axis spans. A line that stands still, but for how its numbers are rounded, is not magnified.
function spread(low, high) {
  if (low === null) return [null, null];
  const room = Math.abs(high) / 10 || 1;
  if (high - low <= 1e-5 * Math.abs(high)) return [low - room, high + room];
  const [begin, end] = [low - (high - low) / 10, high + (high - low) / 10];
  return [low < 0 ? begin : Math.max(0, begin), high > 0 ? end : Math.min(0, end)];
}

// All charts of a view. `placed` is called once one is pinned, moved or enlarged. `over` is the horizontal axis: "" for the
// seconds from each run's begin, "clock" for the time of day, "series:NAME" for what the runs logged under that name.
export function charts(place, { over, log, smoothing, band, zoomed, placed }) {
  const relative = over === "";
  const isTime = relative || over === "clock";
  const axisName = isTime ? "time" : over.replace(/^series:/, "");
  const grid = element("div", { class: "charts" });
  place.append(grid);
  const all = new Map();
  let settled = 0;
  let following = false;
  let ticks = 0;
  const watch = new IntersectionObserver((seen) => {
    for (const each of seen) {
      const chart = all.get(each.target.dataset.name);
      if (!chart) continue;
      chart.visible = each.isIntersecting;
      if (chart.visible) chart.draw();
    }
  }, { rootMargin: "200px" });
  const timer = setInterval(follow, LIVE_MS);
  const resized = new ResizeObserver(() => {
    for (const chart of all.values()) fit(chart);
  });
  resized.observe(grid);

  const fit = (chart) => chart.plot?.setSize({ width: chart.box.clientWidth, height: chart.large ? LARGE_HEIGHT : HEIGHT });

  function make(name, { text, unit }, lines) {
    const values = element("div", { class: "values", "aria-hidden": "true" });
    const box = element("div", { role: "img", "aria-label": `Chart of ${text} over ${axisName}, ${lines.length} line${lines.length === 1 ? "" : "s"}` });
    const save = (kind, act) => button(kind, act, { "aria-label": `Save ${name} as ${kind}` });
    const chart = {
      name, text, unit, lines, values, visible: false, plot: null, box, drawing: false, asked: false, data: null, ends: [], odd: [], figures: [], bands: [], most: 0, large: false,
    };
    chart.element = element("section", { class: "chart", "data-name": name },
      element("h3", {}, element("span", { title: name }, text, " ", element("small", { class: "soft" }, unit)), placing(name, placed),
        save("PNG", () => chart.plot && asPng(chart).toBlob((blob) => saved(`${name}.png`, blob))),
        ["SVG", "PDF"].map((kind) => save(kind, () => saveDrawn(name, kind, [...askedOf(chart), ...chart.lines.map(({ label }) => ["label", label]), ["log", log]]))),
        save("CSV", () => chart.data && saved(`${name}.csv`, new Blob([asCsv(chart, axisName)], { type: "text/csv" })))),
      box, values);
    chart.liveIds = () => (range() ? [] : chart.lines.flatMap(runsOf).filter((id) => known.rows.get(id)?.status === "running"));
    chart.draw = async () => {
      chart.asked = true; // what is asked for meanwhile is drawn afterwards
      if (chart.drawing) return;
      chart.drawing = true;
      try {
        while (chart.asked) {
          chart.asked = false;
          await draw(chart);
        }
      } finally {
        chart.drawing = false;
      }
    };
    return chart;
  }

  // A place on the horizontal axis, in words.
  const placeOf = (at) => (relative ? `${number(at, 4)} s` : isTime ? moment(at) : `${axisName} ${number(at, 6)}`);

  // One part of the time for all charts: from the begin of the first run to the end of the last.
  function whole() {
    const rows = [...all.values()][0].lines.flatMap(runsOf).map((id) => known.rows.get(id)).filter((row) => row && row.began !== null);
    const moments = isTime ? rows.flatMap((row) => [relative ? 0 : row.began, row.ended ? (relative ? 0 : row.began) + row.seconds : null]) : [];
    for (const { data } of all.values()) if (data?.[0].length) moments.push(data[0][0], data[0][data[0].length - 1]);
    const there = moments.filter((moment) => moment !== null);
    const begin = there.length ? Math.min(...there) : 0;
    return [begin, Math.max(begin + 1, ...there)];
  }

  function set(charts) {
    for (const chart of charts) chart.plot.setData(chart.data, false);
    const [min, max] = range() || whole();
    for (const chart of all.values()) {
      if (!chart.plot || !(chart.visible || charts.includes(chart))) continue;
      const { x } = chart.plot.scales;
      if (charts.includes(chart) || x.min !== min || x.max !== max) chart.plot.setScale("x", { min, max });
    }
  }

  // The newest points of all runs that go on, asked for once for all charts in sight.
  async function follow() {
    const charts = [...all.values()].filter((chart) => chart.visible && chart.plot && !chart.drawing && chart.liveIds().length);
    if (!charts.length || document.hidden || following) return;
    ticks += 1;
    if (!isTime || smoothing || charts.some((chart) => chart.lines.some(isMean))) { // where the newest points come to lie, or what they change, the server knows
      if (ticks % REDRAWN_TICKS === 0 && !range()) for (const chart of charts) chart.draw();
      return;
    }
    following = true;
    const ids = new Set(charts.flatMap((chart) => chart.liveIds()));
    const asked = [...[...ids].map((id) => ["id", id]), ...charts.map((chart) => ["name", chart.name])];
    const newest = await ask("/api/newest", asked).finally(() => { following = false; });
    const longerNow = [];
    for (const chart of charts) {
      if (all.get(chart.name) !== chart || chart.drawing || range()) continue;
      let gap = false;
      const added = chart.lines.map(({ id }, line) => {
        const [times, values] = own(newest[id], chart.name) || [[], []];
        const from = relative ? known.rows.get(id)?.began ?? 0 : 0;
        const first = times.findIndex((time) => time - from > chart.ends[line]);
        if (first < 0) return [[], []];
        if (first === 0) gap = true; // between them and the last, there may be others
        else chart.ends[line] = times[times.length - 1] - from;
        chart.figures[line] = grown(chart.figures[line], values.slice(first));
        return [times.slice(first).map((time) => time - from), values.slice(first)];
      });
      tell(chart);
      chart.data = longer(chart.data, added);
      if (gap || chart.data[0].length > chart.most) chart.draw();
      else longerNow.push(chart);
    }
    if (longerNow.length) set(longerNow);
  }

  // What stands below a chart at rest: where nobody points at a place of it.
  function tell(chart) {
    if ((chart.plot?.cursor.idx ?? null) === null) chart.values.replaceChildren(...atRest(chart));
  }

  function askedOf(chart) {
    const view = range();
    const asked = [["name", chart.name], ["over", over], ["smoothing", smoothing], ["band", band], ...chart.lines.map(({ id }) => ["id", id])];
    return view ? [...asked, ["begin", view[0]], ["end", view[1]]] : asked;
  }

  async function draw(chart) {
    const most = Math.max(200, 2 * Math.round(chart.box.clientWidth || 500));
    const asked = [...askedOf(chart), ["most", most]];
    const { times, lines, smooth, bands, ends, odd, figures } = await ask("/api/chart", asked);
    if (all.get(chart.name) !== chart) return;
    let next = 1 + lines.length + smooth.length;
    chart.bands = bands.map((band) => band && (next += band.length) - band.length); // where its columns begin
    chart.data = [times, ...[...lines, ...smooth, ...bands.flatMap((band) => band || [])].map(([at, line]) => column(times.length, at, line))];
    chart.ends = ends.map((end) => end ?? -Infinity);
    Object.assign(chart, { odd, figures, smooth: smooth.length > 0, most: 1.25 * most });
    tell(chart);
    if (chart.plot) return set([chart]);
    const axis = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
    chart.plot = new uPlot({
      width: chart.box.clientWidth, height: chart.large ? LARGE_HEIGHT : HEIGHT, legend: { show: false },
      cursor: {
        sync: { key: axisName }, y: false, drag: { x: true, y: false }, points: { size: 6 },
        hover: { prox: (plot, line) => (inside(plot, line, plot.cursor.left) ? Number.MAX_VALUE : 0) },
      },
      scales: { x: { time: over === "clock" }, y: log ? { distr: 3 } : { range: (_, low, high) => spread(low, high) } },
      axes: [
        over !== "clock" ? { ...axis, size: 30, ...ticksBy(80, "width", steps), values: (_, ticks) => ticksOf("", ticks).map((text) => text + (relative ? " s" : "")) }
          : { ...axis, size: 46, space: 60, values: (_, ticks, _axis, _space, step) => clockOf(ticks, step) },
        { ...axis, size: widthOf, values: (_, ticks) => ticksOf(chart.unit, ticks), filter: (_, ticks) => ticks,
          ...ticksBy(40, "height", log ? logTicks : (low, high, wanted) => steps(low, high, wanted, chart.unit.startsWith("bytes"))) },
      ],
      series: [{}, ...chart.lines.map(({ colour }, at) => ({
        stroke: colour, dash: chart.lines.findIndex((each) => each.colour === colour) < at ? [7, 4] : [], width: 1.5, alpha: smoothing ? FAINT : 1, points: { show: false, fill: colour, filter: (plot, line) => alone(plot.data[line]) },
      })), ...(smoothing ? chart.lines : []).map(({ colour }) => ({ stroke: colour, width: 2, points: { show: false } })),
      ...chart.lines.filter(isMean).flatMap(({ colour }) => [...[0, 1].map(() => ({ stroke: colour, width: 0, points: { show: false } })), { show: false, auto: false }])],
      bands: chart.lines.flatMap(({ colour }, line) => (chart.bands[line] ? [{ series: [chart.bands[line] + 1, chart.bands[line]], fill: colour + BAND }] : [])),
      hooks: {
        setCursor: [(plot) => {
          const at = plot.cursor.idx;
          if (at === null || at === undefined) return tell(chart);
          const among = (line) => plot.data[line]?.[plot.cursor.idxs[line]];
          chart.values.replaceChildren(`${placeOf(plot.posToVal(plot.cursor.left, "x"))}  `, ...chart.lines.map(({ label, colour }, line) => {
            const [value, smooth] = [among(line + 1), chart.smooth && among(chart.lines.length + line + 1)];
            if (value === undefined || value === null) return "";
            const also = typeof smooth !== "number" ? "" : ` (${shown(chart.unit, smooth)})`;
            const [least, greatest, runs] = chart.bands[line] ? [0, 1, 2].map((part) => among(chart.bands[line] + part)) : [];
            const between = runs ? `, ${shown(chart.unit, least)} to ${shown(chart.unit, greatest)} in ${runs} run${runs > 1 ? "s" : ""}` : "";
            return element("span", {}, dot(colour), `${label} ${shown(chart.unit, value)}${also}${between}  `);
          }));
        }],
        draw: [(plot) => markOdd(plot, chart)],
        setSelect: [(plot) => {
          if (plot.select.width < 4) return;
          zoomed([plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")]);
          plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        }],
      },
    }, chart.data, chart.box);
    set([chart]);
    chart.plot.over.addEventListener("dblclick", () => zoomed(null));
    chart.plot.over.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;
      event.preventDefault();
      const { min, max } = chart.plot.scales.x;
      const middle = chart.plot.posToVal(event.offsetX, "x");
      const factor = event.deltaY < 0 || event.deltaX < 0 ? 0.9 : 1.11;
      zoomed([middle - (middle - min) * factor, middle + (max - middle) * factor]);
    }, { passive: false });
  }

  return {
    // Show charts by name, each with its unit and its lines: {id, label}.
    show(wanted) {
      for (const [name, chart] of all) {
        if (!wanted.has(name) || JSON.stringify(wanted.get(name).lines) !== JSON.stringify(chart.lines)) {
          watch.unobserve(chart.element);
          chart.plot?.destroy();
          chart.element.remove();
          all.delete(name);
        }
      }
      for (const [name, { title, lines }] of wanted) {
        let chart = all.get(name);
        if (!chart) all.set(name, (chart = make(name, title, lines)));
        watch.observe(chart.element);
      }
      arrange(grid, [...wanted.keys()].map((name) => all.get(name).element));
      for (const chart of all.values()) {
        if (chart.large === enlarged(chart.name)) continue;
        chart.large = !chart.large;
        chart.element.classList.toggle("large", chart.large);
        fit(chart);
        if (chart.plot) chart.draw();
      }
    },
    span() {
      const scales = [...all.values()].map((chart) => chart.plot?.scales.x).filter(Boolean);
      return scales.length ? [scales[0].min, scales[0].max] : null;
    },
    // Show another part of the time: what is there at once, what is missing once nobody moves any more.
    redraw() {
      const view = range();
      if (view) for (const chart of all.values()) if (chart.visible) chart.plot?.setScale("x", { min: view[0], max: view[1] });
      clearTimeout(settled);
      settled = setTimeout(() => {
        for (const chart of all.values()) if (chart.visible) chart.draw();
      }, SETTLED_MS);
    },
    close() {
      clearInterval(timer);
      clearTimeout(settled);
      watch.disconnect();
      resized.disconnect();
      for (const chart of all.values()) chart.plot?.destroy();
      all.clear();
    },
  };
}

// The last, least and greatest value of a line, with points that have come.
function grown(figures, values) {
  const found = values.filter(Number.isFinite);
  if (!found.length) return figures;
  const of = (choose, before) => choose(...found, ...(Number.isFinite(before) ? [before] : []));
  return { last: found.at(-1), least: of(Math.min, figures?.least), most: of(Math.max, figures?.most) };
}

// Of each line its last value, its least and its greatest; and that it has some that are no numbers.
function atRest(chart) {
  if (chart.lines.length > MOST_FIGURES) return [];
  return chart.lines.map(({ id, label, colour }, line) => {
    const { last, least, most } = chart.figures[line] || {};
    const words = [...new Set((chart.odd[line] || []).map(([, word]) => word))].join(" and ");
    const isKnown = least !== null && least !== undefined; // then a last that is null is no number
    if (!isKnown && !words) return "";
    const known = !isKnown ? "" : `${isMean({ id }) ? "last, on average," : "last"} ${last === null ? "no number" : shown(chart.unit, last)}, least ${shown(chart.unit, least)}, most ${shown(chart.unit, most)}`;
    return element("span", {}, dot(colour), chart.lines.length > 1 && `${label}: `, known, words && element("span", { class: "bad" }, ` ${words}`), "  ");
  });
}

// What no axis has a place for: NaN below, infinities at their edge.
function markOdd(plot, chart) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.font = `bold ${Math.round(12 * devicePixelRatio)}px sans-serif`;
  ctx.textAlign = "center";
  chart.odd.forEach((marks, line) => {
    ctx.fillStyle = chart.lines[line].colour;
    for (const [at, word] of marks) {
      const left = plot.valToPos(at, "x", true);
      if (left < bbox.left || left > bbox.left + bbox.width) continue;
      ctx.fillText(word === "NaN" ? "×" : word, left, word === "∞" ? bbox.top + 12 * devicePixelRatio : bbox.top + bbox.height - 3 * devicePixelRatio);
    }
  });
  ctx.restore();
}
