// Groups beside each other, figure by figure; a bar a run: starting, waiting for data, copying, computing, other; what to change first.

import { change, read } from "./address.js";
import { ask, known } from "./data.js";
import { button, dot, element, noRuns, notRecorded, runLink, update } from "./elements.js";
import { bytes, moment, number, seconds, share } from "./figures.js";
import { saveDrawn, tableSavers } from "./saving.js";
import { selecting } from "./selecting.js";

const PARTS = [
  ["starting", "starts", "#6f5fb0"],
  ["waiting", "waits for data", "#c74a52"],
  ["copying", "copies to the GPU", "#d9822b"],
  ["computing", "computes", "#3d9a50"],
  ["other", "other", "#8b949e"],
];

const sum = (values) => values.reduce((a, b) => a + b, 0);
const measured = (each) => Object.values(each.energy_measured_j);
const shortest = { best: Math.min };
// Of each figure of a group: its value and how it is shown; which is the best; whether it is of all runs together.
const FIGURES = [
  { label: "runs", of: (each) => each.runs.length, text: String },
  { label: "time of all", of: (each) => each.seconds, text: seconds, ...shortest, total: true },
  { label: "time of each run", of: (each) => each.each_s, text: seconds, ...shortest },
  { label: "time of an epoch", of: (each) => each.epoch_s, text: seconds, ...shortest },
  { label: "samples a second, all", of: (each) => each.samples_per_s, text: number, best: Math.max },
  { label: "CPU time, all", of: (each) => each.cpu_s, text: seconds, ...shortest, total: true },
  { label: "energy, measured", of: (each) => (measured(each).length ? sum(measured(each)) : null), text: (value) => `${number(value / 1000)} kJ`, ...shortest, total: true },
  { label: "energy, estimated", of: (each) => each.energy_estimated_j, text: (value) => `${number(value / 1000)} kJ`, ...shortest, total: true },
  { label: "memory at most, all", of: (each) => each.memory_bytes, text: bytes, ...shortest, total: true },
  { label: "waits for data, worst run", of: (each) => each.runs.map((run) => run.parts.waiting).reduce((a, b) => (b === null ? a : Math.max(a ?? 0, b)), null), text: share, ...shortest },
];

// Runs that go on, or that failed, have figures; which of them is better, nobody knows.
function beside(groups) {
  const ended = groups.every((each) => each.runs.every((run) => run.status === "finished"));
  const equal = groups.every((each) => each.runs.length === groups[0].runs.length);
  const rows = FIGURES.map(({ label, of, text, best, total }) => {
    const values = groups.map(of);
    const there = values.filter((value) => value !== null);
    if (!there.length) return null;
    const compared = best && ended && (equal || !total) && there.length > 1;
    return element("tr", {}, element("th", { scope: "row" }, label), values.map((value, at) => {
      if (value === null) return element("td", { class: "number soft" }, "–");
      const isBest = compared && value === best(...there) && there.some((other) => other !== value);
      const ratio = compared && at && values[0] ? `${number(value / values[0], 2)}×` : "";
      return element("td", { class: `number${isBest ? " best" : ""}` }, element("span", {}, text(value)), " ", isBest && element("small", { class: "badge" }, "best"), " ",
        at > 0 && element("small", { class: "soft ratio" }, ratio));
    }));
  });
  const heads = groups.map((each) => element("th", { scope: "col", class: "number" }, each.mode, element("br"), element("small", { class: "soft" }, each.name)));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Groups compared" }, element("table", { class: "groups", "aria-label": "Groups compared" },
    element("thead", {}, element("tr", {}, element("td"), heads)), element("tbody", {}, rows)));
}

function bar(run) {
  const parts = PARTS.filter(([key]) => run.parts[key] !== null);
  const text = parts.map(([key, label]) => `${label} ${share(run.parts[key])}`).join(", ");
  return element("tr", { "data-id": run.id },
    element("td", { class: "name" }, runLink(run)),
    element("td", { class: "number" }, seconds(run.seconds)),
    element("td", { class: "bars" }, parts.length
      ? element("div", { class: "bar", role: "img", "aria-label": text, title: text },
        parts.map(([key, , tint]) => element("span", { colour: tint, width: `${100 * run.parts[key]}%` })))
      : notRecorded()),
    element("td", { class: "soft wide" }, text));
}

// What to change first, once for all runs that the same rule is for: of the one that waits most.
function toChange(each) {
  const kinds = [...new Set(Object.values(each.advice).map(([kind]) => kind))];
  return kinds.map((kind) => {
    const theirs = each.runs.filter((run) => each.advice[run.id]?.[0] === kind);
    const worst = theirs.reduce((a, b) => ((b.parts.waiting ?? 0) > (a.parts.waiting ?? 0) ? b : a));
    return `${worst.name} ${each.advice[worst.id][1]}${theirs.length > 1 ? ` (${theirs.length} of the runs do; it the most)` : ""}.`;
  });
}

function group(each, compared, said) {
  const advice = said ? [] : toChange(each);
  return element("section", { "data-id": each.id },
    element("h2", {}, `${each.name} (${each.mode})`),
    compared ? null : element("p", { class: "soft" }, [
      `all ${seconds(each.seconds)}`, `each ${seconds(each.each_s)}`,
      each.epoch_s !== null && `an epoch ${seconds(each.epoch_s)}`, each.samples_per_s !== null && `${number(each.samples_per_s)} samples a second`,
      each.cpu_s !== null && `${number(each.cpu_s)} s of CPU`,
    ].filter(Boolean).join(" · ")),
    element("div", { class: "scroll" }, element("table", { "aria-label": `Where the time of ${each.name} goes` }, element("tbody", {}, each.runs.map(bar)))),
    advice.map((text) => element("p", { class: "verdict" }, text)));
}

export function open(place) {
  const choice = element("div", { class: "tools", role: "group", "aria-label": "Groups" });
  const body = element("div");
  const legend = () => element("div", { class: "legend" }, PARTS.map(([, label, tint]) => element("span", {}, dot(tint), label)));
  place.append(choice, body);
  let drawn = "";
  let chosen = [];

  const groups = () => [...new Map([...known.rows.values()].filter((row) => row.began !== null).map((row) => [row.group_id, row])).values()].reverse();

  const alike = (there, row) => there.filter((other) => other.group === row.group && other.mode === row.mode).length > 1;

  function toggle(id) {
    change({ group: chosen.includes(id) ? chosen.filter((each) => each !== id) : [...chosen, id] });
    changed();
  }

  async function changed() {
    const there = groups();
    const asked = read().query.getAll("group").filter((id) => there.some((row) => row.group_id === id));
    chosen = asked.length ? asked : there.slice(0, 1).map((row) => row.group_id);
    const state = JSON.stringify([chosen, there.filter((row) => chosen.includes(row.group_id)).map((row) => [row.status, Math.round(row.seconds / 5)])]);
    if (state === drawn) return;
    drawn = state;
    update(choice, element("div", {}, there.slice(0, 12).map((row) => element("button", {
      type: "button", "data-id": row.group_id, title: row.group_id, "aria-pressed": String(chosen.includes(row.group_id)), onclick: () => toggle(row.group_id),
    }, `${row.group} (${row.mode})`, alike(there, row) ? [" ", element("small", { class: "soft" }, moment(row.began))] : null))));
    if (!chosen.length) {
      body.replaceChildren(noRuns(), legend());
      return;
    }
    const which = chosen.map((id) => ["id", id]);
    const [found, selected] = await Promise.all([ask("/api/groups", which), ask("/api/selections", which)]);
    if (!body.isConnected || state !== drawn) return;
    // The table as it stands there: a cell's first part is its value, the others say what is best.
    const besideTexts = () => [...body.querySelectorAll("table.groups tr")].map((row) => [...row.cells].map((cell) => (cell.firstElementChild && cell.tagName === "TD" ? cell.firstElementChild : cell).innerText.replace("\n", " ")));
    const tools = (of, name, words, more) => element("div", { class: "tools", "data-id": `save ${of}` }, element("span", { class: "soft" }, words), more, ["SVG", "PDF"].map((kind) =>
      button(kind, () => saveDrawn(name, kind, [...chosen.map((id) => ["group", id]), ["of", of]]), { "aria-label": `Save ${name} as ${kind}` })));
    const said = found.sentences.map((text) => element("p", { class: "verdict" }, text));
    const advice = said.splice(found.groups.length - 1); // behind what each group is beside the first
    update(body, element("div", {}, said,
      found.groups.length > 1 ? [beside(found.groups), tools("groups", "groups", "Save as a table or a figure:", tableSavers("groups", besideTexts))] : null,
      selecting(selected), legend(), tools("parts", "where the time goes", "Save these bars:"), found.groups.map((each) => group(each, found.groups.length > 1, advice.length)),
      advice.length ? [element("h2", {}, "What to change first"), ...advice] : null));
  }
  changed();
  return { changed };
}
