// Charts of series over time: one cross-hair for all, drawn only while they are in sight.

import uPlot from "/page/vendor/uPlot.esm.js";
import { ask, colour, known } from "/page/data.js";
import { button, dot, element } from "/page/elements.js";
import { bytes, number, shown } from "/page/figures.js";

const HEIGHT = 220;
const LIVE_MS = 1000;
const SETTLED_MS = 120;

// A column of time for all runs of a chart, as uPlot wants it; a value is missing where a run has none.
export function joined(parts) {
  const times = [...new Set(parts.flatMap(([moments]) => moments))].sort((a, b) => a - b);
  const place = new Map(times.map((time, at) => [time, at]));
  const columns = parts.map(([moments, values]) => {
    const column = new Array(times.length).fill(undefined);
    moments.forEach((time, at) => { column[place.get(time)] = values[at]; });
    return column;
  });
  return [times, ...columns];
}

// Bytes with as many digits as the steps between ticks need.
function ticksOf(unit, ticks) {
  if (!unit.startsWith("bytes")) return ticks.map((tick) => number(tick, 6));
  const texts = [3, 4, 6].map((digits) => ticks.map((tick) => bytes(tick, digits)));
  return texts.find((each) => new Set(each).size === each.length) || texts[2];
}

function saved(name, content, type) {
  const link = element("a", { href: URL.createObjectURL(new Blob([content], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// All charts of a view. `range` is [begin, end] in seconds, or null for all; `relative` counts from each run's begin.
export function charts(place, { relative, range, zoomed }) {
  const grid = element("div", { class: "charts" });
  place.append(grid);
  const all = new Map();
  const sync = uPlot.sync("time");
  let settled = 0;
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
    const chart = { name, unit, lines, visible: false, plot: null, box, drawing: false, data: null, parts: [], most: 0 };
    chart.element = element("section", { class: "chart", "data-name": name },
      element("h3", {}, element("span", {}, name, " ", element("small", { class: "soft" }, unit)),
        save("PNG", () => chart.plot?.ctx.canvas.toBlob((blob) => saved(`${name}.png`, blob, "image/png"))),
        save("SVG", () => chart.data && saved(`${name}.svg`, asSvg(chart), "image/svg+xml")),
        save("CSV", () => chart.data && saved(`${name}.csv`, asCsv(chart), "text/csv"))),
      box, values);
    chart.liveIds = () => (range() ? [] : chart.lines.map(({ id }) => id).filter((id) => known.rows.get(id)?.status === "running"));
    chart.draw = async () => {
      if (chart.drawing) return;
      chart.drawing = true;
      try {
        await draw(chart, values);
      } finally {
        chart.drawing = false;
      }
    };
    return chart;
  }

  function set(chart, view) {
    chart.data = joined(chart.parts);
    chart.plot.setData(chart.data, false);
    const times = chart.data[0];
    const whole = times.length ? [times[0], Math.max(times[times.length - 1], times[0] + 1)] : [0, 1];
    chart.plot.setScale("x", { min: (view || whole)[0], max: (view || whole)[1] });
  }

  // The newest points of all runs that go on, asked for once for all charts in sight.
  async function follow() {
    const charts = [...all.values()].filter((chart) => chart.visible && chart.plot && !chart.drawing && chart.liveIds().length);
    if (!charts.length || document.hidden) return;
    const ids = new Set(charts.flatMap((chart) => chart.liveIds()));
    const asked = [...[...ids].map((id) => ["id", id]), ...charts.map((chart) => ["name", chart.name])];
    const newest = await ask("/api/newest", asked);
    for (const chart of charts) {
      if (!all.has(chart.name) || chart.drawing || range()) continue;
      chart.lines.forEach(({ id, series }, line) => {
        const [times, values] = newest[id]?.[series] || [[], []];
        const [there, drawn] = chart.parts[line];
        const from = relative ? known.rows.get(id)?.began ?? 0 : 0;
        times.forEach((time, at) => {
          if (there.length && time - from <= there[there.length - 1]) return;
          there.push(time - from);
          drawn.push(values[at]);
        });
      });
      if (chart.parts.some(([times]) => times.length > chart.most)) chart.draw();
      else set(chart, null);
    }
  }

  async function draw(chart, values) {
    const view = range();
    const most = Math.max(200, 2 * Math.round(chart.box.clientWidth || 500));
    const parts = await Promise.all(chart.lines.map(async ({ id, series }) => {
      const from = relative ? known.rows.get(id)?.began ?? 0 : 0;
      const asked = [["most", most], ["name", series]];
      if (view) asked.push(["begin", view[0] + from], ["end", view[1] + from]);
      const found = (await ask(`/api/runs/${encodeURIComponent(id)}/series`, asked))[series] || [[], []];
      return [found[0].map((time) => time - from), found[1]];
    }));
    if (!all.has(chart.name)) return;
    chart.parts = parts;
    chart.most = 2 * most;
    if (chart.plot) return set(chart, view);
    chart.data = joined(parts);
    const axis = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
    chart.plot = new uPlot({
      width: chart.box.clientWidth, height: HEIGHT, legend: { show: false },
      cursor: { sync: { key: sync.key }, drag: { x: true, y: false }, points: { size: 6 } },
      scales: { x: { time: !relative } },
      axes: [
        { ...axis, values: relative ? (_, ticks) => ticks.map((tick) => `${Number(tick.toPrecision(6))} s`) : undefined },
        { ...axis, size: 70, values: (_, ticks) => ticksOf(chart.unit, ticks) },
      ],
      series: [{}, ...chart.lines.map(({ id }) => ({ stroke: colour(id), width: 1.5, points: { show: false } }))],
      hooks: {
        setCursor: [(plot) => {
          const at = plot.cursor.idx;
          values.replaceChildren(...(at === null || at === undefined ? [] : chart.lines.map(({ id, label }, line) => {
            const value = plot.data[line + 1][at];
            return value === undefined || value === null ? "" : element("span", {}, dot(colour(id)), `${label} ${shown(chart.unit, value)}  `);
          })));
        }],
        setSelect: [(plot) => {
          if (plot.select.width < 4) return;
          zoomed([plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")]);
          plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        }],
      },
    }, chart.data, chart.box);
    sync.sub(chart.plot);
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
    // Show charts by name, each with its unit and its lines: {id, series, label}.
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
        grid.append(chart.element);
        watch.observe(chart.element);
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

function asCsv(chart) {
  const quoted = (text) => `"${String(text).replaceAll('"', '""')}"`;
  const lines = [["seconds", ...chart.lines.map(({ label }) => label)].map(quoted).join(",")];
  chart.data[0].forEach((time, at) => lines.push([time, ...chart.data.slice(1).map((column) => column[at] ?? "")].join(",")));
  return lines.join("\n") + "\n";
}

function asSvg(chart) {
  const [width, height, left, bottom] = [900, 400, 80, 40];
  const { x, y } = chart.plot.scales;
  const across = (time) => left + ((time - x.min) / (x.max - x.min || 1)) * (width - left - 10);
  const up = (value) => 30 + (1 - (value - y.min) / (y.max - y.min || 1)) * (height - bottom - 40);
  const escaped = (text) => String(text).replace(/[<>&"]/g, (letter) => `&#${letter.charCodeAt(0)};`);
  const label = (text, at, where, anchor) => `<text x="${at}" y="${where}" text-anchor="${anchor}">${escaped(text)}</text>`;
  const parts = chart.lines.map(({ id, label: name }, line) => {
    const points = chart.data[0].flatMap((time, at) => {
      const value = chart.data[line + 1][at];
      return value === undefined || value === null || time < x.min || time > x.max ? [] : [`${across(time).toFixed(1)},${up(value).toFixed(1)}`];
    });
    return `<polyline fill="none" stroke="${colour(id)}" points="${points.join(" ")}"><title>${escaped(name)}</title></polyline>`;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="12">` +
    `<rect width="${width}" height="${height}" fill="#fff"/>` + label(`${chart.name} ${chart.unit}`, left, 18, "start") +
    label(shown(chart.unit, y.max), left - 6, 38, "end") + label(shown(chart.unit, y.min), left - 6, height - bottom, "end") +
    label(x.min.toFixed(1), left, height - 12, "start") + label(x.max.toFixed(1), width - 10, height - 12, "end") + parts.join("") + "</svg>";
}
