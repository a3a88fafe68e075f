// What parameters did to a metric: a line through all of them for each run, and a point for one of them.

import { change, go, read } from "./address.js";
import { columnOf, glance, KINDS, MOST_OFFERED, varying } from "./columns.js";
import { known, summarise } from "./data.js";
import { button, element, fill, noRuns, update } from "./elements.js";
import { number } from "./figures.js";
import { wanted } from "./runs.js";
import { axisOf, colourAt, RAMP } from "./scales.js";

const MOST_RUNS = 1000;
const MOST_AXES = 8;
const ALWAYS = ["seconds", "waiting", "cores", "memory"]; // columns of every run
const SCALES = [["", "as they fit"], ["log", "logarithmic"], ["linear", "linear"]];
const AXES = ["step", "epoch"]; // logged to say where a run is
const [HEIGHT, TOP, BOTTOM, LEFT, RIGHT, AXIS_PX] = [340, 44, 40, 74, 40, 120];
const MOST_LETTERS = 16;
const REST = "Point at a run, or reach it by Tab, to see which it is. A click, or Enter, opens it.";

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.flat(Infinity));
  return made;
}

const cut = (text) => (text.length > MOST_LETTERS ? `${text.slice(0, MOST_LETTERS - 1)}…` : text);
const text = (content, x, y, anchor, more = {}) => svg("text", { x, y, "text-anchor": anchor, ...more }, svg("title", {}, content), cut(content));
const up = (place) => HEIGHT - BOTTOM - place * (HEIGHT - TOP - BOTTOM);
const plain = (column) => (column.ofMetric ? column.key.slice(column.key.indexOf(":") + 1) : column.label);
const called = (column) => (column.ofMetric ? column.key.replace(":", " ") : column.label);

const upright = (axis, x, name, anchor = "middle") => svg("g", {},
  svg("line", { x1: x, x2: x, y1: up(0), y2: up(1), class: "rule" }), text(name, x, TOP - 26, anchor, { class: "title" }), axis.log ? text("log", x, TOP - 12, anchor) : [],
  axis.ticks.map(([place, label]) => [svg("line", { x1: x - 4, x2: x, y1: up(place), y2: up(place), class: "rule" }), text(label, x - 7, up(place) + 4, "end")]));

const frame = (name, width, ...parts) => element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, svg("svg", { role: "group", "aria-label": name, width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, class: "parameters" }, parts));

// All axes beside each other, the metric's last, and a line for each run.
function parallel(runs, columns, axes, room) {
  const width = Math.max(room, LEFT + RIGHT + AXIS_PX * (columns.length - 1));
  const across = (at) => LEFT + (at * (width - LEFT - RIGHT)) / (columns.length - 1);
  const anchor = (at) => (at === 0 ? "start" : at === columns.length - 1 ? "end" : "middle");
  const path = (values) => values.map((value, at) => (value === undefined ? "" : `${values[at - 1] === undefined ? "M" : "L"}${across(at).toFixed(1)} ${up(axes[at].at(value)).toFixed(1)}`)).join("");
  const lines = runs.map(({ row, values, tint, said }) => svg("a", { href: `#/run/${row.id}`, "data-id": row.id, "aria-label": said, tabindex: -1 },
    svg("path", { d: path(values), class: "near" }), svg("path", { d: path(values), stroke: tint, class: "seen" })));
  return frame(`A line for each run: ${columns.map(called).join(", ")}`, width, lines, columns.map((column, at) => upright(axes[at], across(at), called(column), anchor(at))));
}

// A point for each run: one parameter across, the metric up.
function scatter(runs, at, column, metric, axes, room) {
  const across = (place) => LEFT + place * (room - LEFT - RIGHT);
  const points = runs.filter(({ values }) => values[at] !== undefined).map(({ row, values, tint, said }) => svg("a", { href: `#/run/${row.id}`, "data-id": row.id, "aria-label": said },
    svg("circle", { cx: across(axes[at].at(values[at])).toFixed(1), cy: up(axes.at(-1).at(values.at(-1))).toFixed(1), r: 6, fill: tint })));
  const floor = svg("g", {}, svg("line", { x1: across(0), x2: across(1), y1: up(0) + 4, y2: up(0) + 4, class: "rule" }),
    text(column.label, across(1), HEIGHT - 4, "end", { class: "title" }), axes[at].ticks.map(([place, label]) => text(label, across(place), HEIGHT - 20, "middle")));
  return frame(`A point for each run: ${called(metric)} over ${column.label}`, room, upright(axes.at(-1), across(0) - 8, called(metric), "start"), floor, points);
}

export function open(place) {
  const set = (changes) => { change(changes); draw(); };
  const metricChoice = element("select", { "aria-label": "Metric", onchange: () => choose() });
  const choose = () => set({ metric: ALWAYS.includes(metricChoice.value) ? metricChoice.value : `${kindChoice.value}:${metricChoice.value}` });
  const kindChoice = element("select", { "aria-label": "Which of its values", onchange: choose }, KINDS.map((kind) => element("option", { value: kind }, kind)));
  const over = element("select", { "aria-label": "Parameter of the points", onchange: () => set({ x: over.value }) });
  const scale = element("select", { "aria-label": "Axes of numbers", onchange: () => set({ axes: scale.value }) }, SCALES.map(([value, words]) => element("option", { value }, words)));
  const said = element("p", { class: "soft", role: "status" }, REST);
  const note = element("p", { class: "soft" });
  const body = element("div");
  place.append(element("div", { class: "tools" }, element("label", {}, "metric ", kindChoice, " ", metricChoice), element("label", {}, "points over ", over), element("label", {}, "axes ", scale),
    button("Compare", () => go("compare", { run: read().query.getAll("run") }))), note, said, body);
  let drawn = "";
  let spoken = new Map();
  let pointed = "";

  function rows() {
    const { query } = read();
    const chosen = query.getAll("run").map((id) => known.rows.get(id)).filter(Boolean);
    return chosen.length ? chosen : wanted(new URLSearchParams({ filter: query.get("filter") || "" }));
  }

  function metricOf(names) {
    const metric = columnOf(read().query.get("metric") || "") || columnOf(names.length ? `last:${names[0]}` : "seconds");
    const name = metric.ofMetric ? plain(metric) : metric.key;
    const offered = names.includes(name) || !metric.ofMetric ? names.slice(0, MOST_OFFERED) : [name, ...names.slice(0, MOST_OFFERED)];
    fill(metricChoice, [...offered.map((each) => [each, each]), ...ALWAYS.map((key) => [key, columnOf(key).label])], name);
    kindChoice.hidden = !metric.ofMetric;
    if (metric.ofMetric) kindChoice.value = metric.key.split(":")[0];
    return metric;
  }

  function draw() {
    const all = rows();
    const there = all.slice(0, MOST_RUNS);
    summarise(there, () => body.isConnected && draw());
    const having = new Map(); // of each name, how many runs log it
    for (const row of there) for (const name of Object.keys(glance(row).logged || {})) having.set(name, (having.get(name) || 0) + 1);
    const names = [...having.keys()].filter((name) => !AXES.includes(name)).sort((a, b) => having.get(b) - having.get(a) || (a < b ? -1 : 1));
    const metric = metricOf(names);
    const shown = there.filter((row) => metric.of(row) !== undefined);
    const varied = varying(shown);
    const parameters = varied.slice(0, MOST_AXES).map((name) => columnOf(`param:${name}`));
    const columns = [...parameters, metric];
    const have = parameters.map((column) => shown.filter((row) => column.of(row) !== undefined).length);
    const asked = parameters.findIndex((column) => column.label === read().query.get("x"));
    const at = Math.max(0, asked < 0 ? have.indexOf(Math.max(...have)) : asked);
    fill(over, parameters.map(({ label }) => [label, label]), columns[at].label);
    const table = shown.map((row) => columns.map((column) => column.of(row)));
    const room = Math.max(300, body.clientWidth);
    scale.value = SCALES.some(([value]) => value === read().query.get("axes")) ? read().query.get("axes") : "";
    const state = JSON.stringify([room, at, scale.value, columns.map(({ key }) => key), all.length, shown.map(({ id, name }) => [id, name]), table]);
    if (state === drawn) return;
    drawn = state;
    const without = there.length - shown.length;
    const lacking = columns.length > 1 ? table.filter((values) => values[at] === undefined).length : 0;
    note.textContent = [
      `${shown.length} run${shown.length === 1 ? "" : "s"}.`, all.length > there.length && `The newest ${there.length} of ${all.length} are looked at: filter for others.`,
      without > 0 && `${without} without ${plain(metric)} left out.`, lacking > 0 && `${lacking} of them without ${columns[at].label} have no point.`,
      varied.length > MOST_AXES && `The first ${MOST_AXES} of ${varied.length} parameters that vary.`,
    ].filter(Boolean).join(" ");
    if (!known.rows.size) return body.replaceChildren(noRuns());
    if (!shown.length) return body.replaceChildren();
    if (!varied.length) return body.replaceChildren(element("p", { class: "empty" }, "No parameter differs between these runs. A sweep has some: penstock run --grid lr=0.1,0.03 train.py --lr {lr}"));
    const axes = columns.map((_, place) => axisOf(table.map((values) => values[place]), scale.value));
    const runs = shown.map((row, place) => ({
      row, values: table[place], tint: colourAt(axes.at(-1).tint(table[place].at(-1))),
      said: `${row.name}: ${columns.map((column) => `${called(column)} ${column.text(row) || "–"}`).join(", ")}`,
    }));
    spoken = new Map(runs.map(({ row, said }) => [row.id, said]));
    const { low, high, log } = axes.at(-1);
    update(body, element("div", {},
      element("p", { class: "legend" }, `${called(metric)}${log ? ", logarithmic" : ""}: `, number(low, 4), element("span", { class: "ramp", colour: RAMP, "aria-hidden": "true" }), number(high, 4)),
      element("h2", {}, "All parameters"), parallel(runs, columns, axes, room), element("h2", {}, `${called(metric)} over ${columns[at].label}`),
      scatter(runs, at, columns[at], metric, axes, room)));
    mark();
  }

  function mark(id = pointed) {
    pointed = id;
    body.classList.toggle("picked", Boolean(id));
    for (const each of body.querySelectorAll("a[data-id]")) each.classList.toggle("at", each.dataset.id === id);
    said.textContent = spoken.get(id) || REST;
  }
  for (const kind of ["pointerover", "focusin"]) body.addEventListener(kind, (event) => mark(event.target.closest("a[data-id]")?.dataset.id || ""));
  for (const kind of ["pointerleave", "focusout"]) body.addEventListener(kind, () => mark(""));
  const resized = new ResizeObserver(() => draw());
  resized.observe(body);
  draw();
  return { changed: draw, close: () => resized.disconnect() };
}
