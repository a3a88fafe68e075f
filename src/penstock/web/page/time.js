// Groups beside each other, figure by figure; a bar a run: starting, waiting for data, copying, computing, other; what to change first.

import { change, read } from "./address.js";
import { grouper } from "./columns.js";
import { ask, colourOfGroup, known } from "./data.js";
import { button, dot, element, noRuns, notRecorded, runLink, update } from "./elements.js";
import { bytes, moment, number, seconds, share } from "./figures.js";
import { wordsOf } from "./runs.js";
import { saveDrawn, tableSavers } from "./saving.js";
import { selecting } from "./selecting.js";

const PARTS = [
  ["starting", "starts", "#6f5fb0"],
  ["waiting", "waits for data", "#c74a52"],
  ["copying", "copies to the GPU", "#d9822b"],
  ["computing", "computes", "#3d9a50"],
  ["other", "other", "#8b949e"],
];

const MOST_OFFERED = 12;
const NONE = "-";
const NAMED = "name:"; // before what all groups of one name and mode are called
const { called } = grouper("name");

const sum = (values) => values.reduce((a, b) => a + b, 0);
const measured = (each) => Object.values(each.energy_measured_j);
const shortest = { best: Math.min };
// Of each figure of a group: its value and how it is shown; which is the best; whether it is of all runs together.
const FIGURES = [
  { label: "runs", of: (each) => each.runs.length, text: String },
  { label: "time of all", unit: "s", of: (each) => each.seconds, text: seconds, ...shortest, total: true },
  { label: "time of each run", unit: "s", of: (each) => each.each_s, text: seconds, ...shortest },
  { label: "time of an epoch", unit: "s", of: (each) => each.epoch_s, text: seconds, ...shortest },
  { label: "samples a second, all", of: (each) => each.samples_per_s, text: number, best: Math.max },
  { label: "CPU time, all", unit: "s", of: (each) => each.cpu_s, text: seconds, ...shortest, total: true },
  { label: "of that, its feeds", unit: "s", of: (each) => each.feed_cpu_s, text: seconds, total: true },
  { label: "energy, measured", unit: "J", of: (each) => (measured(each).length ? sum(measured(each)) : null), text: (value) => `${number(value / 1000)} kJ`, ...shortest, total: true },
  { label: "energy, estimated", unit: "J", of: (each) => each.energy_estimated_j, text: (value) => `${number(value / 1000)} kJ`, ...shortest, total: true },
  { label: "memory at most, all", unit: "bytes", of: (each) => each.memory_bytes, text: bytes, ...shortest, total: true },
  { label: "waits for data, worst run", unit: "part", of: (each) => each.runs.map((run) => run.parts.waiting).reduce((a, b) => (b === null ? a : Math.max(a ?? 0, b)), null), text: share, ...shortest },
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

const besideNumbers = (groups) => [["", ...groups.map((each) => `${each.mode} ${each.name}`)], ...FIGURES.map(({ label, unit, of }) => [unit ? `${label}, ${unit}` : label, ...groups.map((each) => of(each) ?? "")]).filter(([, ...values]) => values.some((value) => value !== ""))];

function bar(run) {
  const parts = PARTS.filter(([key]) => run.parts[key] !== null);
  const text = parts.map(([key, label]) => `${label} ${share(run.parts[key])}`).join(", ");
  return element("tr", { "data-id": run.id },
    element("td", { class: "name" }, runLink(run)),
    element("td", { class: "number" }, seconds(run.seconds)),
    element("td", { class: "bars" }, parts.length
      ? [element("div", { class: "bar", role: "img", "aria-label": text, title: text },
        parts.map(([key, , tint]) => element("span", { colour: tint, width: `${100 * run.parts[key]}%` }))), element("small", { class: "soft" }, text)]
      : notRecorded()));
}

// What to change first, once for all runs that the same rule is for: of the one that waits most.
function toChange(each) {
  const kinds = [...new Set(Object.values(each.advice).map(([kind]) => kind))];
  return kinds.map((kind) => {
    const theirs = each.runs.filter((run) => each.advice[run.id]?.[0] === kind);
    const part = { copy: "copying", start: "starting", other: "other" }[kind] ?? "waiting";
    const worst = theirs.reduce((a, b) => ((b.parts[part] ?? 0) > (a.parts[part] ?? 0) ? b : a));
    return `${worst.name}${each.starts > 1 ? ` (${worst.id})` : ""} ${each.advice[worst.id][1]}${theirs.length > 1 ? ` (${theirs.length} of the runs do, this one the most)` : ""}.`;
  });
}

const startsOf = (rows) => [...new Set(rows.map((row) => row.group_id))];

// Which runs of its name a group has.
function counted(each) {
  const ids = new Set(each.runs.map(({ id }) => id));
  const named = [...known.rows.values()].filter((row) => row.group === each.name && row.began !== null);
  const its = named.filter((row) => ids.has(row.id)).sort((a, b) => a.began - b.began);
  const [starts, others] = [startsOf(its).length, named.length - its.length];
  const runs = (count) => `${count} run${count > 1 ? "s" : ""}`;
  const begun = starts > 1 ? ` of ${starts} groups, begun from ${moment(its[0].began)} to ${moment(its.at(-1).began)}; the time of all is the sum of theirs, each from its first begin to its last end.`
    : `, begun at ${moment(its[0]?.began)}.`;
  return runs(its.length) + begun + (others ? ` ${runs(others)} of other groups of this name ${others > 1 ? "do" : "does"} not count.` : "");
}

function group(each, compared, said) {
  const advice = said ? [] : toChange(each);
  const rows = each.runs.map(({ id }) => known.rows.get(id)).filter(Boolean);
  return element("section", { "data-id": `${each.id} ${each.runs.length}` },
    element("h2", {}, dot(colourOfGroup(startsOf(rows).length > 1 ? called(rows[0]) : each.id)), `${each.name} (${each.mode})`),
    element("p", { class: "soft" }, counted(each)),
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
  const search = element("input", { type: "search", placeholder: "Search groups: words", "aria-label": "Search groups", oninput: () => { change({ filter: search.value }); changed(); } });
  search.value = read().query.get("filter") || "";
  const more = element("span", { class: "soft", role: "status" });
  const body = element("div");
  const legend = () => element("div", { class: "legend" }, PARTS.map(([, label, tint]) => element("span", {}, dot(tint), label)));
  place.append(element("div", { class: "tools" }, search, more), choice, body);
  let drawn = "";
  let chosen = [];
  let compared = [];
  let first = []; // what is shown as long as nobody has chosen

  // The runs of all groups, by the groups' ids, newest first; and those of all groups of one name as one.
  function groups() {
    const found = new Map();
    for (const row of known.rows.values()) {
      if (row.began === null) continue;
      for (const key of [row.group_id, NAMED + called(row)]) {
        const its = found.get(key) || [];
        its.push(row);
        found.delete(key);
        found.set(key, its);
      }
    }
    return new Map([...found].reverse());
  }

  function offer(there) {
    const words = wordsOf(read().query.get("filter"));
    const starts = new Map([...there].filter(([key]) => key.startsWith(NAMED)).map(([key, rows]) => [key, startsOf(rows)]));
    const said = (key, rows) => (starts.has(key) ? `all ${starts.get(key).length} groups, ${rows.length} runs` : starts.get(NAMED + called(rows[0])).length > 1 ? moment(rows.at(-1).began) : "");
    const offered = [...there].filter(([key]) => starts.get(key)?.length !== 1);
    const found = offered.filter(([key, rows]) => words.every((word) => `${called(rows[0])} ${key} ${said(key, rows)}`.toLowerCase().includes(word)));
    const shown = [...there].filter(([key]) => chosen.includes(key) || found.slice(0, MOST_OFFERED).some(([each]) => each === key));
    more.textContent = found.length > MOST_OFFERED ? `the newest ${MOST_OFFERED} of ${found.length} groups: search for others` : words.length && !found.length ? "no group has these words" : "";
    update(choice, element("div", {}, shown.map(([key, rows]) => element("button", {
      type: "button", "data-id": key, title: starts.get(key)?.join(" ") ?? key, "aria-pressed": String(chosen.includes(key)), onclick: () => toggle(key),
    }, called(rows[0]), said(key, rows) ? [" ", element("small", { class: "soft" }, said(key, rows))] : null))));
  }

  function toggle(id) {
    const now = chosen.includes(id) ? chosen.filter((each) => each !== id) : [...chosen, id];
    change({ group: now.length ? now : NONE });
    changed();
  }

  // What is shown at first: the newest group that has finished beside the newest of another name with as many runs, the older one first,
  // each with its repeats if those are all that its name has; else the newest group.
  function atFirst(there) {
    const starts = [...there].filter(([key]) => !key.startsWith(NAMED));
    const waiting = new Set([...known.rows.values()].filter(({ began }) => began === null).map((row) => row.group_id));
    const isWhole = ([key, rows]) => !waiting.has(key) && rows.every(({ status, archived }) => status === "finished" && !archived);
    const alike = (rows) => JSON.stringify(rows.map(({ name, parameters }) => [name, parameters]).sort());
    const [newer, ...others] = starts.filter(isWhole);
    const older = newer && others.find(([, rows]) => called(rows[0]) !== called(newer[1][0]));
    if (!older || older[1].length !== newer[1].length) return starts.slice(0, 1).map(([key]) => key);
    return [older, newer].map(([key, rows]) => {
      const its = starts.filter(([, each]) => called(each[0]) === called(rows[0]));
      return its.length > 1 && its.every((each) => isWhole(each) && alike(each[1]) === alike(rows)) ? NAMED + called(rows[0]) : key;
    });
  }

  async function changed() {
    const there = groups();
    const asked = read().query.getAll("group").filter((key) => there.has(key));
    first = first.filter((key) => there.has(key));
    if (!first.length) first = atFirst(there);
    chosen = asked.length || read().query.has("group") ? asked : first;
    offer(there);
    const state = JSON.stringify(chosen.map((key) => there.get(key).map((row) => [row.id, row.status, Math.round(row.seconds / 5)])));
    if (state === drawn) return;
    drawn = state;
    if (!chosen.length) {
      body.replaceChildren(there.size ? element("p", { class: "empty" }, "No group is chosen: press those that you want.") : noRuns(), legend());
      return;
    }
    const which = chosen.map((key) => startsOf(there.get(key)));
    const [found, selected] = await Promise.all([
      ask("/api/groups", which.map((ids) => ["id", ids.join()])), ask("/api/selections", which.map(([id]) => ["id", id])),
    ]);
    if (!body.isConnected || state !== drawn) return;
    compared = found.groups;
    // The table as it stands there: a cell's first part is its value, the others say what is best.
    const besideTexts = () => [...body.querySelectorAll("table.groups tr")].map((row) => [...row.cells].map((cell) => (cell.firstElementChild && cell.tagName === "TD" ? cell.firstElementChild : cell).innerText.replace("\n", " ")));
    const tools = (of, name, words, more) => element("div", { class: "tools", "data-id": `save ${of}` }, element("span", { class: "soft" }, words), more, ["SVG", "PDF"].map((kind) =>
      button(kind, () => saveDrawn(name, kind, [...chosen.map((key) => ["group", startsOf(groups().get(key)).join()]), ["of", of]]), { "aria-label": `Save ${name} as ${kind}` })));
    const said = found.sentences.map((text) => element("p", { class: "verdict" }, text));
    const advice = said.splice(found.groups.length - 1); // behind what each group is beside the first
    update(body, element("div", {}, said,
      found.groups.length > 1 ? [beside(found.groups), tools("groups", "groups", "Save as a table or a figure:", tableSavers("groups", besideTexts, () => besideNumbers(compared)))] : null,
      selecting(selected), legend(), tools("parts", "where the time goes", "Save these bars:"), found.groups.map((each) => group(each, found.groups.length > 1, advice.length)),
      advice.length ? [element("h2", {}, "What to change first"), ...advice] : null));
  }
  changed();
  return { changed, key: ({ key }) => key === "/" && (search.focus(), true) };
}
