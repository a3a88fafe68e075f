// The table of runs: filter, sort, group, pin, choose.

import { change, go, read } from "/page/address.js";
import { ask, colour, known } from "/page/data.js";
import { button, dot, element } from "/page/elements.js";
import { bytes, moment, number, seconds, share } from "/page/figures.js";

const AT_ONCE = 100;

const glance = (row) => known.glances[row.id] || {};
const COLUMNS = [
  { key: "name", label: "run", of: (row) => row.name, cell: (row) => [dot(colour(row.id)), row.name], class: "name" },
  { key: "group", label: "group", of: (row) => row.group, class: "name wide" },
  { key: "mode", label: "mode", of: (row) => row.mode, class: "wide" },
  { key: "status", label: "status", of: (row) => row.status, cell: status },
  { key: "began", label: "began", of: (row) => row.began ?? Infinity, cell: (row) => moment(row.began), class: "number wide" },
  { key: "seconds", label: "time", of: (row) => row.seconds ?? -1, cell: (row) => seconds(row.seconds), class: "number" },
  { key: "waiting", label: "waits", of: (row) => glance(row).waiting ?? -1, cell: (row) => share(glance(row).waiting), class: "number" },
  { key: "cores", label: "cores", of: (row) => glance(row).cores ?? -1, cell: (row) => number(glance(row).cores), class: "number wide" },
  { key: "memory", label: "memory", of: (row) => glance(row).rss_bytes ?? -1, cell: (row) => bytes(glance(row).rss_bytes), class: "number wide" },
  { key: "logged", label: "logs", of: logged, class: "name wide" },
];
const BAD = new Set(["failed", "out_of_memory", "timed_out", "killed", "lost"]);

function status(row) {
  const text = row.status.replaceAll("_", " ") + (row.exit_code ? ` (${row.exit_code})` : "");
  const kind = BAD.has(row.status) ? "bad" : row.status === "running" ? "good" : "";
  return [element("span", { class: kind, title: row.reason }, text)];
}

function logged(row) {
  const values = Object.entries(glance(row).logged || {}).slice(0, 3);
  return values.map(([name, value]) => `${name} ${number(value)}`).join(", ");
}

function matches(row, words) {
  const parameters = Object.entries(row.parameters).map(([name, value]) => `${name}=${value}`);
  const text = [row.id, row.name, row.group, row.mode, row.status, row.reason, ...parameters].join(" ").toLowerCase();
  return words.every((word) => (word.startsWith("-") && word.length > 1 ? !text.includes(word.slice(1)) : text.includes(word)));
}

// The rows that an address asks for, pinned ones first.
export function wanted(query) {
  const words = (query.get("filter") || "").toLowerCase().split(/\s+/).filter(Boolean);
  const pinned = new Set(query.getAll("pin"));
  const sort = query.get("sort") || "-added";
  const found = [...known.rows.values()].filter((row) => pinned.has(row.id) || matches(row, words));
  const down = sort.startsWith("-") ? -1 : 1;
  const column = COLUMNS.find((each) => each.key === sort.replace(/^-/, ""));
  if (column) {
    const order = (a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
    found.sort((a, b) => down * order(column.of(a), column.of(b)));
  } else if (down < 0) found.reverse();
  return [...found.filter((row) => pinned.has(row.id)), ...found.filter((row) => !pinned.has(row.id))];
}

export function open(place) {
  let most = AT_ONCE;
  let at = -1;
  let asking = false;
  let rows = [];
  const search = element("input", {
    type: "search", placeholder: "Filter: words, -words, lr=0.1", "aria-label": "Filter runs", oninput: () => set({ filter: search.value }),
  });
  search.value = read().query.get("filter") || "";
  const grouping = button("Group", () => set({ group: read().query.get("group") ? "" : "1" }));
  const toCompare = button("Compare", () => go("compare", { run: read().query.getAll("run") }));
  const count = element("span", { class: "soft", "aria-live": "polite" });
  const head = element("thead");
  const body = element("tbody");
  const more = button("Show more", () => { most += AT_ONCE; draw(); });
  const table = element("div", { class: "scroll" }, element("table", { "aria-label": "Runs" }, head, body));
  place.append(element("div", { class: "tools" }, search, grouping, toCompare, count), table, more);

  function set(changes) {
    change(changes);
    draw();
  }

  function toggle(key, id) {
    const ids = read().query.getAll(key);
    set({ [key]: ids.includes(id) ? ids.filter((each) => each !== id) : [...ids, id] });
  }

  function line(row, chosen, pinned) {
    const name = `${row.name} of ${row.group}`;
    const box = element("input", { type: "checkbox", "aria-label": `Compare ${name}`, onchange: () => toggle("run", row.id) });
    box.checked = chosen.has(row.id);
    const pin = button(pinned.has(row.id) ? "★" : "☆", () => toggle("pin", row.id), {
      "aria-label": `Pin ${name}`, "aria-pressed": String(pinned.has(row.id)),
    });
    const cells = COLUMNS.map((column) => {
      const content = column.cell ? column.cell(row) : column.of(row);
      const inside = column.key === "name" ? element("a", { href: `#/run/${row.id}`, title: row.name }, content) : content;
      return element("td", { class: column.class }, inside);
    });
    const made = element("tr", { "data-id": row.id, class: rows[at]?.id === row.id && "at" }, element("td", {}, box, pin), cells);
    return made;
  }

  function heading() {
    const sort = read().query.get("sort") || "-added";
    const cells = COLUMNS.map((column) => {
      const down = sort === `-${column.key}`;
      const up = sort === column.key;
      const sorted = down ? "descending" : up ? "ascending" : undefined;
      const label = column.label + (down ? " ↓" : up ? " ↑" : "");
      const next = down ? column.key : up ? "" : `-${column.key}`;
      return element("th", { scope: "col", class: column.class?.replace("name", ""), "aria-sort": sorted }, button(label, () => set({ sort: next })));
    });
    return element("tr", {}, element("th", { scope: "col" }, element("span", { class: "soft" }, "show")), cells);
  }

  function draw() {
    const { query } = read();
    rows = wanted(query);
    const [chosen, pinned] = [new Set(query.getAll("run")), new Set(query.getAll("pin"))];
    grouping.setAttribute("aria-pressed", String(Boolean(query.get("group"))));
    toCompare.disabled = !chosen.size;
    count.textContent = `${rows.length} of ${known.rows.size} runs`;
    const lines = [];
    let group = "";
    if (query.get("group")) {
      const order = new Map();
      for (const row of rows) order.set(row.group_id, order.size);
      const first = new Map([...rows.keys()].reverse().map((index) => [rows[index].group_id, index]));
      rows = [...rows].sort((a, b) => first.get(a.group_id) - first.get(b.group_id));
    }
    for (const row of rows.slice(0, most)) {
      if (query.get("group") && row.group_id !== group) {
        group = row.group_id;
        const title = `${row.group} (${row.mode})`;
        lines.push(element("tr", { class: "group" }, element("th", { colspan: COLUMNS.length + 1, scope: "rowgroup" }, title)));
      }
      lines.push(line(row, chosen, pinned));
    }
    summarise(rows.slice(0, most).filter((row) => row.ended && !known.glances[row.id]?.whole));
    head.replaceChildren(heading());
    body.replaceChildren(...lines);
    if (!known.rows.size) {
      body.replaceChildren(element("tr", {}, element("td", { colspan: COLUMNS.length + 1, class: "empty" },
        "No runs yet. Start one with: penstock run train.py")));
    }
    more.hidden = rows.length <= most;
  }

  // What runs did on the whole is asked for once they have ended, and only of those in the table.
  async function summarise(ended) {
    if (asking || !ended.length) return;
    asking = true;
    try {
      const found = await ask("/api/summaries", ended.slice(0, AT_ONCE).map((row) => ["id", row.id]));
      for (const row of ended.slice(0, AT_ONCE)) known.glances[row.id] = { ...found[row.id], whole: true };
    } finally {
      asking = false;
    }
    if (body.isConnected) draw();
  }

  function key(event) {
    if (event.key === "/") search.focus();
    else if (event.key === "j" || event.key === "k") {
      at = Math.min(Math.max(at + (event.key === "j" ? 1 : -1), 0), rows.length - 1);
      most = Math.max(most, at + 1);
      draw();
      body.querySelector(".at")?.scrollIntoView({ block: "nearest" });
    } else if (event.key === "x" && rows[at]) toggle("run", rows[at].id);
    else if (event.key === "p" && rows[at]) toggle("pin", rows[at].id);
    else if (event.key === "Enter" && rows[at] && event.target === document.body) location.hash = `#/run/${rows[at].id}`;
    else return false;
    return true;
  }

  draw();
  return { changed: draw, key };
}
