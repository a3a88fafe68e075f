// The columns of the table of runs: what every run has, its parameters, and what its script logs.

import { colour, known, own } from "./data.js";
import { dot, element } from "./elements.js";
import { bytes, moment, number, ODD, seconds, share } from "./figures.js";
import { noteOf, tagsOf } from "./notes.js";

const MOST_VARYING = 6;
export const MOST_OFFERED = 100;
export const KINDS = ["last", "least", "most"]; // of what a run logs, in the order in which the server gives them
const BAD = new Set(["failed", "out_of_memory", "timed_out", "killed", "lost"]);

export const glance = (row) => known.glances[row.id] || {};

// Of each column: what it sorts by, undefined for nothing; the text of a cell; and what a cell holds if that is more
// (handed what it held before); `wide` if a phone has no room for it unless it is asked for.
const FIXED = [
  { key: "id", label: "id", of: (row) => row.id, text: (row) => row.id, class: "id", wide: true },
  { key: "name", label: "run", of: (row) => row.name, text: (row) => row.name, made: link, class: "name stays" },
  { key: "group", label: "group", of: (row) => row.group, text: (row) => row.group, class: "name", wide: true },
  { key: "mode", label: "mode", of: (row) => row.mode, text: (row) => row.mode, wide: true },
  { key: "status", label: "status", of: (row) => row.status, text: status, made: statusOf },
  { key: "tags", label: "tags", of: (row) => row.tags.join(" ") || undefined, text: (row) => [...row.tags, row.archived && "archived"].filter(Boolean).join(" "), made: tagsOf },
  { key: "began", label: "began", of: (row) => row.began ?? Infinity, text: (row) => moment(row.began), unit: "s since 1970", class: "number", wide: true },
  { key: "seconds", label: "time", of: (row) => row.seconds ?? undefined, text: (row) => seconds(row.seconds), unit: "s", class: "number" },
  { key: "left", label: "left", of: (row) => left(row)?.seconds, text: (row) => (left(row) ? `~${seconds(Math.round(left(row).seconds))}` : ""), unit: "s", class: "number" },
  { key: "waiting", label: "waits", of: (row) => glance(row).waiting ?? undefined, text: (row) => share(glance(row).waiting), unit: "part", class: "number" },
  { key: "cores", label: "cores", of: (row) => glance(row).cores ?? undefined, text: (row) => number(glance(row).cores), class: "number", wide: true },
  { key: "memory", label: "memory", of: (row) => glance(row).memory_bytes ?? undefined, text: (row) => bytes(glance(row).memory_bytes), unit: "bytes", class: "number", wide: true },
  { key: "logged", label: "logs", of: logged, text: logged, class: "name", wide: true },
  { key: "note", label: "note", of: (row) => row.note || undefined, text: (row) => row.note, made: (row, before) => before || noteOf(row.id), wide: true },
];

function link(row) {
  return element("a", { href: `#/run/${row.id}`, title: row.name }, dot(colour(row.id)), row.name);
}

function status(row) {
  return row.status.replaceAll("_", " ") + (row.exit_code ? ` (${row.exit_code})` : "");
}

function statusOf(row) {
  const kind = BAD.has(row.status) ? "bad" : row.status === "running" ? "good" : "";
  return element("span", { class: kind, title: row.reason }, status(row));
}

function logged(row) {
  const values = Object.entries(glance(row).logged || {}).slice(0, 3);
  return values.map(([name, value]) => `${name} ${number(value)}`).join(", ");
}

// What a parameter is called that says how long a run is, and a series that says how far it has come.
const LENGTHS = [
  [/^(.*[./])?((num|max|total|train)[_-]?)*(steps|iters|iterations)$/i, /^(.*[/_])?(step|iteration)$/i],
  [/^(.*[./])?((num|max|total|train)[_-]?)*epochs?$/i, /^(.*[/_])?epoch$/i],
];

// How long a run that goes on takes yet, in seconds, and by what that is known; undefined where nobody can tell.
export function left(row) {
  const its = glance(row);
  if (row.ended || !its.per_s) return undefined;
  const last = (values, of) => Object.entries(values || {}).filter(([name]) => of.test(name)).map(([name, value]) => [name, Number(value)]);
  for (const [asked, logged] of LENGTHS) {
    const [[, all] = []] = last(row.parameters, asked);
    const [[name, now] = []] = last(its.logged, logged);
    const rise = own(its.per_s, name);
    if (all > now && rise > 0) return { seconds: (all - now) / rise, text: `${name} ${number(now)} of ${number(all)}` };
  }
  return undefined;
}

// Of what a parameter has been given, what is the same: numbers, however they are written, but for words such as 007 and what has too many digits.
const plain = (text) => (typeof asNumber(text) === "number" && text.length <= 15 && !/^0\d/.test(text) ? String(asNumber(text)) : text);

const asNumber = (text) => (text?.trim() && Number.isFinite(Number(text)) ? Number(text) : text);

// A run's last, least or greatest value of what it logs; of one that goes on, only the last is known.
function figure(row, kind, name) {
  const its = glance(row);
  return own(its.figures, name)?.[KINDS.indexOf(kind)] ?? (kind === "last" ? own(its.logged, name) : undefined) ?? undefined;
}

const made = new Map();

// The column of a key: of a fixed one, of "param:NAME", or of "last:NAME", "least:NAME", "most:NAME".
export function columnOf(key) {
  const fixed = FIXED.find((each) => each.key === key);
  if (fixed || !key.includes(":")) return fixed;
  if (!made.has(key)) {
    const [kind, name] = [key.slice(0, key.indexOf(":")), key.slice(key.indexOf(":") + 1)];
    const isParameter = kind === "param";
    const of = isParameter ? (row) => asNumber(own(row.parameters, name)) : (row) => figure(row, kind, name);
    const text = isParameter ? (row) => own(row.parameters, name) ?? "" : (row) => number(figure(row, kind, name), 4);
    made.set(key, { key, label: isParameter || kind === "last" ? name : `${kind} ${name}`, of, text, class: "number", ofMetric: !isParameter });
  }
  return made.get(key);
}

// The values of each parameter, and how many runs have each.
function valuesOf(rows) {
  const seen = new Map();
  for (const row of rows) for (const [name, value] of Object.entries(row.parameters)) seen.set(name, (seen.get(name) || new Map()).set(plain(value), (seen.get(name)?.get(plain(value)) || 0) + 1));
  return [...seen];
}

// Parameters of which runs have different values, or some of them none.
export const varying = (rows) => valuesOf(rows).filter(([, values]) => values.size > 1 || [...values.values()][0] < rows.length).map(([name]) => name);

// How runs can be grouped, each for an address and for people.
export const groupings = (rows) => [["1", "group"], ["name", "name of the group"], ...varying(rows).slice(0, MOST_OFFERED).map((name) => [`param:${name}`, name])];

// Of runs grouped in such a way: what those of one group have in common, and what it is called.
export function grouper(by) {
  const column = by.startsWith("param:") && columnOf(by);
  const called = column ? (row) => `${column.label} = ${column.text(row) || "–"}` : (row) => `${row.group} (${row.mode})`;
  return { key: by === "1" ? (row) => row.group_id : column ? (row) => plain(column.text(row)) : called, called };
}

const NARROW = matchMedia("(max-width: 600px)");

// The columns that an address asks for; else those that every run has, and after the name the parameters of several values.
export function columnsOf(query, rows) {
  const asked = query.getAll("col").map(columnOf).filter(Boolean);
  if (asked.length) return asked;
  const among = rows.length > 1 ? rows : [...known.rows.values()]; // one run differs from those that are not shown
  const parameters = valuesOf(among).filter(([, values]) => values.size > 1).slice(0, MOST_VARYING).map(([name]) => columnOf(`param:${name}`));
  const tagged = rows.some((row) => row.tags.length || row.archived);
  const hidden = [!tagged && "tags", !rows.some(left) && "left"];
  const fixed = FIXED.filter(({ key, wide }) => !hidden.includes(key) && !(wide && NARROW.matches));
  const after = fixed.findIndex(({ key }) => key === "name") + 1;
  return [...fixed.slice(0, after), ...parameters, ...fixed.slice(after)];
}

// All that can be chosen: a title and keys each.
export function offered(rows) {
  const parameters = [...new Set(rows.flatMap((row) => Object.keys(row.parameters)))];
  const names = [...new Set(rows.flatMap((row) => Object.keys(glance(row).logged || {})))].sort();
  return [
    ["Runs", FIXED.map(({ key, label }) => [label, [[key, ""]]])],
    ["Parameters", parameters.map((name) => [name, [[`param:${name}`, ""]]])],
    ["Logged", names.map((name) => [name, KINDS.map((kind) => [`${kind}:${name}`, kind])])],
  ].filter(([, entries]) => entries.length);
}

const LOW = /(^|[^a-z])(loss(?![_ ]?scale)|err|error|perplexity|ppl|r?mse|mae|nll|wer|cer)([^a-z]|$)/i;
const HIGH = /(^|[^a-z])(acc|accuracy|f1|auc|map|precision|recall|bleu|rouge|iou|dice|score|top)([^a-z]|$)/i;

// Whether the first click on a column's heading puts small values first: the best is then above.
export const ascends = (column) => Boolean(column.ofMetric && LOW.test(column.key));

// The best value of a column among rows, by what it is called; undefined where that says nothing, or all are equal.
export function bestOf(column, rows) {
  if (!column.ofMetric) return undefined;
  const { key } = column;
  const best = LOW.test(key) ? Math.min : HIGH.test(key) ? Math.max : null;
  const values = rows.map(column.of).filter((value) => typeof value === "number");
  const found = best && values.reduce((a, b) => best(a, b), values[0]);
  return found !== undefined && values.some((value) => value !== found) ? found ?? undefined : undefined;
}

const order = new Intl.Collator("en", { numeric: true }).compare;

// Two values of a column; in any order NaN and infinities come behind numbers, and what is not there last.
export function compared(a, b, down) {
  const [behind, other] = [a, b].map((value) => (value === undefined ? 2 : Number(ODD.includes(value))));
  if (behind !== other || behind === 2) return behind - other;
  if (behind) return down * (ODD.indexOf(a) - ODD.indexOf(b));
  return down * (typeof a === "number" && typeof b === "number" ? a - b || 0 : order(a, b));
}

// What asks whether a parameter of this name is this number; null if that is none.
export function equals(name, text) {
  const wanted = asNumber(text);
  if (typeof wanted !== "number") return null;
  return (row) => Object.entries(row.parameters).some(([each, value]) => each.toLowerCase() === name && asNumber(value) === wanted);
}

const LIMIT = /^(.+?)(<=|>=|<|>)(-?[\d.]+(?:e[+-]?\d+)?)$/;
// What is measured of every run, in the units in which a limit names it: %, s, cores, MiB.
const MEASURED = {
  waits: (row) => 100 * glance(row).waiting, time: (row) => row.seconds, cores: (row) => glance(row).cores, memory: (row) => glance(row).memory_bytes / 2 ** 20,
};
const HOLDS = { "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b };

// What a word such as lr>0.1, loss<2 or waits>50 asks of a parameter, of the last value of what is logged, or of what is
// measured; null if it is no such word.
export function limit(word) {
  const found = LIMIT.exec(word);
  if (!found) return null;
  const [, name, relation, text] = found;
  const is = (value) => typeof value === "number" && HOLDS[relation](value, Number(text));
  const named = (values) => Object.keys(values || {}).find((each) => each.toLowerCase() === name);
  const measured = own(MEASURED, name);
  if (measured) return (row) => is(measured(row) ?? undefined);
  return (row) => is(asNumber(row.parameters[named(row.parameters)])) || is(figure(row, "last", named(glance(row).logged)));
}
