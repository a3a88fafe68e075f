// Schedules: by GPU, when the first plan had each run, when it ran, and when the newest plan has what is to come.

import { ask, colour, known } from "./data.js";
import { element, term, update } from "./elements.js";
import { moment, seconds } from "./figures.js";

const PARTS = { ran: "ran", coming: "to come, by the newest plan", planned: "first plan" };
const KINDS = Object.keys(PARTS);

// What stands before an end that rests on a run of which nothing is known, or whose length is assumed.
const guess = (times) => (times.some((each) => each?.ends_by_guess) ? "~" : "");

const end = (times) => Math.max(0, ...times.filter(Boolean).map((each) => each.end_s));

// Each start of a run that the store still has, with its times in seconds from the schedule's start.
function timed([name, starts], began, planned, coming) {
  return starts.map(([id, gpus], at) => {
    const row = known.rows.get(id);
    const ran = row?.began ? { gpus, start_s: row.began - began, end_s: row.began - began + row.seconds } : null;
    const isLast = at === starts.length - 1 && !row?.ended;
    const left = coming.find((each) => isLast && each.name === name && each.end_s > end([ran]));
    return { row, name, ran, planned: planned.find((each) => !at && each.name === name), coming: left && { ...left, start_s: Math.max(left.start_s, end([ran])) } };
  }).filter(({ row }) => row);
}

// Rows of the runs on a GPU, in each of which no two overlap.
function rowsOn(gpu, runs) {
  const rows = [];
  const there = runs.map((run) => {
    const parts = KINDS.filter((kind) => run[kind]?.gpus.includes(gpu)).map((kind) => ({ kind, ...run[kind] }));
    return { run, parts, start_s: Math.min(...parts.map((part) => part.start_s)), end_s: end(parts) };
  });
  for (const each of there.filter(({ parts }) => parts.length).sort((a, b) => a.start_s - b.start_s)) {
    const row = rows.find((others) => others.at(-1).end_s <= each.start_s);
    if (row) row.push(each);
    else rows.push([each]);
  }
  return rows;
}

const within = ({ start_s, end_s }, from_s, length_s) => ({ left: `${(100 * (start_s - from_s)) / length_s}%`, width: `${(100 * (end_s - start_s)) / length_s}%` });

function item({ run: { row, name }, parts, ...all }, length_s) {
  const status = row.status === "finished" ? "" : `, ${row.status.replaceAll("_", " ")}`;
  const title = `${name}${status}: ${parts.map((part) => `${PARTS[part.kind]} ${part.starts_by_guess ? "~" : ""}${seconds(part.start_s)} to ${guess([part])}${seconds(part.end_s)}`).join("; ")}`;
  return element("li", { "data-id": row.id, ...within(all, 0, length_s) }, element("a", { href: `#/run/${row.id}`, title },
    name, row.ended && status && element("span", { class: "bad" }, status),
    parts.map((part) => element("span", { class: part.kind, colour: colour(row.id), ...within(part, all.start_s, all.end_s - all.start_s) }))));
}

function schedule({ id, began, gpus, runs, planned, coming }) {
  const there = runs.flatMap((run) => timed(run, began, planned, coming));
  const [ran_s, left_s, planned_s] = KINDS.map((kind) => end(there.map((run) => run[kind])));
  const all_s = Math.max(ran_s, left_s);
  const length_s = Math.max(all_s, Math.min(planned_s, 2 * all_s), 1); // a first plan may be far off
  const statuses = there.map(({ row }) => row.status.replaceAll("_", " "));
  const counts = [...new Set(statuses)].map((status) => `${statuses.filter((each) => each === status).length} ${status}`);
  return there.length > 0 && element("section", { "data-id": id },
    element("h2", {}, [...new Set(there.map(({ row }) => row.group))].join(", "), " ", element("small", { class: "soft" }, moment(began))),
    element("dl", {}, term("runs", counts.join(", ")), term("expected to take", guess(there.map((run) => run.planned)) + seconds(planned_s)),
      term(there.every(({ row }) => row.ended) ? "took" : "now expected to take", guess(there.map((run) => run.coming)) + seconds(all_s))),
    element("div", { class: "scroll" }, element("div", { class: "gantt" },
      [...Array(Math.max(gpus, 1)).keys()].flatMap((gpu) => [element("h3", {}, gpus ? `GPU ${gpu}` : "runs"), element("div", { class: "lane" },
        element("span", { class: "end", left: `${(100 * planned_s) / length_s}%` }), rowsOn(gpu, there).map((row) => element("ul", {}, row.map((each) => item(each, length_s)))))]),
      element("div", { class: "axis soft" }, [0, 1, 2, 3, 4].map((part) => element("span", {}, seconds((part * length_s) / 4)))))));
}

export function open(place) {
  const body = element("div");
  place.append(body);
  let [found, asked] = [null, ""];

  async function changed() {
    const going = [...known.rows.values()].filter((row) => !row.ended).map((row) => row.status);
    const state = `${known.rows.size} ${going} ${going.length && Math.floor(Date.now() / 3000)}`;
    if (state !== asked) {
      asked = state;
      found = await ask("/api/schedules");
    }
    if (!found || !body.isConnected) return;
    const shown = found.map(schedule).filter(Boolean);
    const legend = KINDS.map((kind) => element("span", {}, element("span", { class: `swatch ${kind}`, colour: "var(--strong)" }), PARTS[kind]));
    update(body, element("div", {}, shown.length
      ? [element("div", { class: "legend" }, legend, element("span", {}, element("span", { class: "swatch end" }), "expected end")), ...shown]
      : element("p", { class: "empty" }, "No schedule yet. penstock schedule run sweep.yaml begins one: it plans when each run of a file runs, and where.")));
  }
  changed();
  return { changed };
}
