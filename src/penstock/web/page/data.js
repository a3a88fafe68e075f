// What the server knows: rows of runs, feeds, and what changes of them once a second.

export const known = { rows: new Map(), glances: {}, feeds: [], gpus: { cards: [], note: "" } };

// Of values by names that people chose, such as "constructor", which every object has.
export const own = (values, name) => (values && Object.hasOwn(values, name) ? values[name] : undefined);

const listeners = new Set();

export function whenChanged(listener) {
  listeners.add(listener);
}

// The server is away: the link to it says so, once for all that asks.
export class Away extends Error {}

async function reached(path, more) {
  const answer = await fetch(path, more).catch(() => { throw new Away(GONE); });
  if (answer.status === 401) throw new Away(LOCKED);
  return answer;
}

async function valueOf(answer) {
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error);
  return value;
}

export async function ask(path, parameters = []) {
  const query = new URLSearchParams(parameters).toString();
  return valueOf(await reached(query ? `${path}?${query}` : path));
}

// What a path answers now; `before`, which it answered earlier, if that has not changed.
export async function askAgain(path, before) {
  const answer = await reached(path, { headers: { "If-None-Match": before?.tag ?? "" } });
  return answer.status === 304 ? before : { value: await valueOf(answer), tag: answer.headers.get("ETag") };
}

async function sent(path, value) {
  const { key } = await ask("/api/key"); // anew each time: the server may have been started again
  const headers = { "Content-Type": "application/json", "X-Penstock-Key": key };
  return reached(path, { method: "POST", headers, body: JSON.stringify(value) });
}

// A table of texts, its heading first, as LaTeX.
export async function asLatex(rows) {
  const answer = await sent("/api/latex", rows);
  return answer.ok ? answer.blob() : valueOf(answer);
}

// Change something of runs, or have them end. This page shows it at once, others with the server's next look.
export async function write(change, path = "/api/change") {
  const done = await valueOf(await sent(path, change));
  document.getElementById("trouble").textContent = ""; // what was told before is over
  take(done);
}

function take(change) {
  if (change.all) known.rows = new Map(change.all.map((row) => [row.id, row]));
  for (const row of change.rows || []) known.rows.set(row.id, row);
  for (const id of change.removed || []) {
    known.rows.delete(id);
    delete known.glances[id];
  }
  Object.assign(known.glances, change.glances);
  known.feeds = change.feeds || known.feeds;
  known.gpus = change.gpus || known.gpus;
  for (const listener of listeners) listener();
}

const AGAIN_MS = 1000;
const SILENT_MS = 20_000; // a server that is there tells something each second
const GONE = "the server does not answer: trying again";
const LOCKED = "the server was started again: open the URL that it has printed";

// Listens for ever: first come all runs, then what changes. A page that was away begins anew. One that nobody sees, in another tab or
// kept for the back button, does not listen: a browser has six connections to a server, for all of its pages.
export function begin(showLink) {
  if (document.hidden) return document.addEventListener("visibilitychange", () => begin(showLink), { once: true });
  const stream = new EventSource("/api/live");
  document.addEventListener("visibilitychange", leave, { once: true });
  function leave() {
    clearTimeout(silence);
    stream.close();
    begin(showLink);
  }
  let silence = setTimeout(lost, SILENT_MS); // a computer that slept may not be told that a connection is gone
  async function lost() {
    clearTimeout(silence);
    stream.close();
    document.removeEventListener("visibilitychange", leave);
    const status = await fetch("/api/titles", { signal: AbortSignal.timeout(SILENT_MS) }).then((answer) => answer.status, () => 0);
    showLink(status === 401 ? LOCKED : GONE);
    setTimeout(() => begin(showLink), AGAIN_MS);
  }
  stream.onerror = lost;
  stream.onmessage = (event) => {
    clearTimeout(silence);
    silence = setTimeout(lost, SILENT_MS);
    const change = JSON.parse(event.data);
    showLink(change.error || "");
    take(change);
  };
}

const ASKED_AT_ONCE = 200;

let asking = false;

// Ask what runs that have ended did on the whole, of so many at once; `then` is called once more is known.
export async function summarise(rows, then) {
  const asked = rows.filter((row) => row.ended && !known.glances[row.id]?.whole).slice(0, ASKED_AT_ONCE);
  if (asking || !asked.length) return;
  asking = true;
  const found = await ask("/api/summaries", asked.map((row) => ["id", row.id])).finally(() => { asking = false; });
  for (const row of asked) known.glances[row.id] = { ...found[row.id], whole: true };
  then();
}

// One colour for each run, for ever: neighbours in a group differ, and nothing but the run decides, but for `distinct`.
const COLOURS = [
  "#2f7fb8", "#d9822b", "#3d9a50", "#c74a52", "#8a6bbf", "#98684f", "#cf6fae", "#5f7f86", "#a39a24", "#28a3ad", "#5a5fd0",
  "#b2543b", "#6d9c2f", "#a8479f",
];
function colourOf(place, text) {
  let first = place;
  for (const letter of text) first += letter.charCodeAt(0) * 5;
  return COLOURS[first % COLOURS.length];
}

export function colour(id) {
  const row = known.rows.get(id);
  return row ? colourOf(row.index, row.group_id) : COLOURS[0];
}

// The same for lines of one chart, but that one whose colour another line before it has gets one that none has.
export function distinct(lines) {
  const taken = new Set();
  return lines.map((line) => {
    const spare = () => COLOURS.find((each) => !taken.has(each) && !lines.some((other) => other.colour === each));
    const colour = (taken.has(line.colour) && spare()) || line.colour;
    taken.add(colour);
    return { ...line, colour };
  });
}

// One for each group, by what its runs have in common.
export const colourOfGroup = (key) => colourOf(0, key);
