// Charts of series over time: one cross-hair for all, drawn only while they are in sight.

import uPlot from "./vendor/uPlot.esm.js";
import { ask, colour, known } from "./data.js";
import { arrange, button, dot, element } from "./elements.js";
import { moment, number, shown, ticksOf } from "./figures.js";

const HEIGHT = 220;
const LIVE_MS = 1000;
const SETTLED_MS = 120;
const NEAR_PX = 12;
const ROW_PX = 16;
const LEAST_AXIS_PX = 70; // so that charts below each other begin at one place

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

const BYTE_STEPS = Array.from({ length: 60 }, (_, power) => 2 ** power);

// Moments as everywhere on the page; the date where it changes.
function clockOf(ticks, step) {
  const texts = ticks.map((tick) => moment(tick).split(" "));
  return texts.map(([date, time], at) => time.slice(0, step < 60 ? 8 : 5) + (date === texts[at - 1]?.[0] ? "" : `\n${date}`));
}

// The pieces of a line between its gaps, each a list of places.
function pieces(values) {
  const found = [[]];
  values.forEach((value, at) => {
    if (value === null) found.push([]);
    else if (value !== undefined) found[found.length - 1].push(at);
  });
  return found.filter((piece) => piece.length);
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
  return high - low <= 1e-6 * Math.abs(high) ? [low - room, high + room] : uPlot.rangeNum(low, high, 0.1, true);
}

function saved(name, blob) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// All charts of a view. `range` is [begin, end] in seconds, or null for all; `relative` counts from each run's begin.
export function charts(place, { relative, range, zoomed }) {
  const grid = element("div", { class: "charts" });
  place.append(grid);
  const all = new Map();
  let settled = 0;
  let following = false;
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
    for (const chart of all.values()) chart.plot?.setSize({ width: chart.box.clientWidth, height: HEIGHT });
  });
  resized.observe(grid);

  function make(name, unit, lines) {
    const values = element("div", { class: "values", "aria-hidden": "true" });
    const box = element("div", { role: "img", "aria-label": `Chart of ${name} over time, ${lines.length} lines` });
    const save = (kind, act) => button(kind, act, { "aria-label": `Save ${name} as ${kind}` });
    const chart = { name, unit, lines, visible: false, plot: null, box, drawing: false, asked: false, data: null, ends: [], most: 0 };
    chart.element = element("section", { class: "chart", "data-name": name },
      element("h3", {}, element("span", {}, name, " ", element("small", { class: "soft" }, unit)),
        save("PNG", () => chart.plot && asPng(chart).toBlob((blob) => saved(`${name}.png`, blob))),
        save("SVG", () => chart.plot && saved(`${name}.svg`, new Blob([asSvg(chart, relative)], { type: "image/svg+xml" }))),
        save("CSV", () => chart.data && saved(`${name}.csv`, new Blob([asCsv(chart)], { type: "text/csv" })))),
      box, values);
    chart.liveIds = () => (range() ? [] : chart.lines.map(({ id }) => id).filter((id) => known.rows.get(id)?.status === "running"));
    chart.draw = async () => {
      chart.asked = true; // what is asked for meanwhile is drawn afterwards
      if (chart.drawing) return;
      chart.drawing = true;
      try {
        while (chart.asked) {
          chart.asked = false;
          await draw(chart, values);
        }
      } finally {
        chart.drawing = false;
      }
    };
    return chart;
  }

  // One part of the time for all charts: from the begin of the first run to the end of the last.
  function whole() {
    const rows = [...all.values()][0].lines.map(({ id }) => known.rows.get(id)).filter((row) => row && row.began !== null);
    const moments = rows.flatMap((row) => [relative ? 0 : row.began, row.ended ? (relative ? 0 : row.began) + row.seconds : null]);
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
    following = true;
    const ids = new Set(charts.flatMap((chart) => chart.liveIds()));
    const asked = [...[...ids].map((id) => ["id", id]), ...charts.map((chart) => ["name", chart.name])];
    const newest = await ask("/api/newest", asked).finally(() => { following = false; });
    const longerNow = [];
    for (const chart of charts) {
      if (all.get(chart.name) !== chart || chart.drawing || range()) continue;
      let gap = false;
      const added = chart.lines.map(({ id }, line) => {
        const [times, values] = newest[id]?.[chart.name] || [[], []];
        const from = relative ? known.rows.get(id)?.began ?? 0 : 0;
        const first = times.findIndex((time) => time - from > chart.ends[line]);
        if (first < 0) return [[], []];
        if (first === 0) gap = true; // between them and the last, there may be others
        else chart.ends[line] = times[times.length - 1] - from;
        return [times.slice(first).map((time) => time - from), values.slice(first)];
      });
      chart.data = longer(chart.data, added);
      if (gap || chart.data[0].length > chart.most) chart.draw();
      else longerNow.push(chart);
    }
    if (longerNow.length) set(longerNow);
  }

  async function draw(chart, values) {
    const view = range();
    const most = Math.max(200, 2 * Math.round(chart.box.clientWidth || 500));
    const asked = [["name", chart.name], ["most", most], ...chart.lines.map(({ id }) => ["id", id])];
    if (!relative) asked.push(["clock", 1]);
    if (view) asked.push(["begin", view[0]], ["end", view[1]]);
    const { times, lines, ends } = await ask("/api/chart", asked);
    if (all.get(chart.name) !== chart) return;
    chart.data = [times, ...lines.map(([at, line]) => column(times.length, at, line))];
    chart.ends = ends.map((end) => end ?? -Infinity);
    chart.most = 1.25 * most;
    if (chart.plot) return set([chart]);
    const axis = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
    chart.plot = new uPlot({
      width: chart.box.clientWidth, height: HEIGHT, legend: { show: false },
      cursor: {
        sync: { key: "time" }, y: false, drag: { x: true, y: false }, points: { size: 6 },
        hover: { prox: (plot, line) => (inside(plot, line, plot.cursor.left) ? Number.MAX_VALUE : 0) },
      },
      scales: { x: { time: !relative }, y: { range: (_, low, high) => spread(low, high) } },
      axes: [
        relative ? { ...axis, size: 30, values: (_, ticks) => ticks.map((tick) => `${Number(tick.toPrecision(6))} s`) }
          : { ...axis, size: 46, space: 60, values: (_, ticks, _axis, _space, step) => clockOf(ticks, step) },
        { ...axis, size: widthOf, values: (_, ticks) => ticksOf(chart.unit, ticks), ...(chart.unit.startsWith("bytes") && { incrs: BYTE_STEPS }) },
      ],
      series: [{}, ...chart.lines.map(({ id }) => ({
        stroke: colour(id), width: 1.5, points: { show: false, fill: colour(id), filter: (plot, line) => alone(plot.data[line]) },
      }))],
      hooks: {
        setCursor: [(plot) => {
          const at = plot.cursor.idx;
          if (at === null || at === undefined) return values.replaceChildren();
          const time = plot.posToVal(plot.cursor.left, "x");
          values.replaceChildren(relative ? `${number(time, 4)} s  ` : `${moment(time)}  `, ...chart.lines.map(({ id, label }, line) => {
            const value = plot.data[line + 1][plot.cursor.idxs[line + 1]];
            return value === undefined || value === null ? "" : element("span", {}, dot(colour(id)), `${label} ${shown(chart.unit, value)}  `);
          }));
        }],
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
      for (const [name, { unit, lines }] of wanted) {
        let chart = all.get(name);
        if (!chart) all.set(name, (chart = make(name, unit, lines)));
        watch.observe(chart.element);
      }
      arrange(grid, [...wanted.keys()].map((name) => all.get(name).element));
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

function asCsv(chart) {
  const quoted = (text) => `"${String(text).replaceAll('"', '""')}"`;
  const lines = [["seconds", ...chart.lines.map(({ label }) => label)].map(quoted).join(",")];
  chart.data[0].forEach((time, at) => lines.push([time, ...chart.data.slice(1).map((column) => column[at] ?? "")].join(",")));
  return lines.join("\n") + "\n";
}

// What is seen, on a ground of its own: the chart's name above, the names of its lines below.
function asPng(chart) {
  const from = chart.plot.ctx.canvas;
  const scale = from.width / chart.plot.width;
  const height = from.height + (24 + ROW_PX * chart.lines.length) * scale;
  const canvas = Object.assign(element("canvas"), { width: from.width, height });
  const pen = canvas.getContext("2d");
  pen.fillStyle = css("--back");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(from, 0, 20 * scale);
  pen.scale(scale, scale);
  const write = (text, left, top, fill) => Object.assign(pen, { fillStyle: fill, font: "12px sans-serif" }).fillText(text, left, top);
  write(`${chart.name} ${chart.unit}`, 8, 16, css("--front"));
  chart.lines.forEach(({ id, label }, line) => {
    const top = 20 + HEIGHT + ROW_PX * (line + 1);
    write("●", 8, top - 4, colour(id));
    write(label, 24, top - 4, css("--front"));
  });
  return canvas;
}

function asSvg(chart, relative) {
  const { x, y } = chart.plot.scales;
  const [least, most] = ticksOf(chart.unit, [y.min, y.max]);
  const [width, height, left, bottom] = [900, 400, 24 + 8 * Math.max(7, least.length, most.length), 40];
  const across = (time) => left + ((time - x.min) / (x.max - x.min || 1)) * (width - left - 10);
  const up = (value) => 30 + (1 - (value - y.min) / (y.max - y.min || 1)) * (height - bottom - 40);
  const escaped = (text) => String(text).replace(/[<>&"]/g, (letter) => `&#${letter.charCodeAt(0)};`);
  const label = (text, at, where, anchor) => `<text x="${at}" y="${where}" text-anchor="${anchor}">${escaped(text)}</text>`;
  const time = (at) => (relative ? `${at.toFixed(1)} s` : moment(at));
  const parts = chart.lines.map(({ id, label: name }, line) => {
    const values = chart.data[line + 1];
    const seen = chart.data[0].map((at, place) => (at < x.min || at > x.max ? undefined : values[place]));
    const drawn = pieces(seen).map((piece) => {
      const points = piece.map((at) => [across(chart.data[0][at]).toFixed(1), up(seen[at]).toFixed(1)]);
      return piece.length === 1 ? `<circle cx="${points[0][0]}" cy="${points[0][1]}" r="2.5" fill="${colour(id)}"/>`
        : `<polyline fill="none" stroke="${colour(id)}" points="${points.map((point) => point.join(",")).join(" ")}"/>`;
    });
    const row = height + ROW_PX * line;
    return `<g><title>${escaped(name)}</title>${drawn.join("")}</g><circle cx="${left + 4}" cy="${row + 4}" r="4" fill="${colour(id)}"/>` +
      label(name, left + 14, row + 8, "start");
  });
  const whole = height + ROW_PX * chart.lines.length;
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${whole}" font-family="sans-serif" font-size="12">` +
    `<rect width="${width}" height="${whole}" fill="#fff"/>` + label(`${chart.name} ${chart.unit}`, left, 18, "start") +
    label(least, left - 6, height - bottom, "end") + label(most, left - 6, 38, "end") +
    label(time(x.min), left, height - 16, "start") + label(time(x.max), width - 10, height - 16, "end") + parts.join("") + "</svg>";
}
