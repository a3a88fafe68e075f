// What the server knows: rows of runs, feeds, and what changes of them once a second.

export const known = { rows: new Map(), glances: {}, feeds: [], error: "" };

const listeners = new Set();

export function whenChanged(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function tell(change) {
  for (const listener of listeners) listener(change);
}

export async function ask(path, parameters = []) {
  const query = new URLSearchParams(parameters).toString();
  const answer = await fetch(query ? `${path}?${query}` : path);
  if (answer.status === 401) throw new Error("This page's key is no longer good: open the URL that penstock web has printed.");
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error);
  return value;
}

export async function begin(showLink) {
  const stream = new EventSource("/api/live");
  stream.onopen = async () => {
    // What changed while nobody listened is read once more.
    const rows = await ask("/api/runs");
    known.rows = new Map(rows.map((row) => [row.id, row]));
    showLink("live");
    tell({ rows, all: true });
  };
  stream.onerror = () => showLink("lost");
  stream.onmessage = (event) => {
    const change = JSON.parse(event.data);
    known.error = change.error || "";
    if (change.error) return tell(change);
    for (const row of change.rows) known.rows.set(row.id, row);
    for (const id of change.removed) known.rows.delete(id);
    Object.assign(known.glances, change.glances);
    known.feeds = change.feeds;
    tell(change);
  };
}

// One colour for each run, for ever: neighbours in a group differ, and nothing but the run decides.
const COLOURS = [
  "#2f7fb8", "#d9822b", "#3d9a50", "#c74a52", "#8a6bbf", "#98684f", "#cf6fae", "#5f7f86", "#a39a24", "#28a3ad", "#5a5fd0",
  "#b2543b", "#6d9c2f", "#a8479f",
];
export function colour(id) {
  const row = known.rows.get(id);
  if (!row) return COLOURS[0];
  let first = row.index;
  for (const letter of row.group_id) first += letter.charCodeAt(0) * 5;
  return COLOURS[first % COLOURS.length];
}
