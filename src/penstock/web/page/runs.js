// The table of runs: filter, sort, group, pin, choose.

import { change, go, read } from "./address.js";
import { ask, colour, known } from "./data.js";
import { arrange, button, dot, element, noRuns } from "./elements.js";
import { bytes, moment, number, seconds, share } from "./figures.js";

const AT_ONCE = 50;

const glance = (row) => known.glances[row.id] || {};
// Of each column: what it sorts by, the text of a cell, and what a cell holds if that is more than its text.
const COLUMNS = [
  { key: "id", label: "id", of: (row) => row.id, text: (row) => row.id, class: "id wide" },
  { key: "name", label: "run", of: (row) => row.name, text: (row) => row.name, made: link, class: "name" },
  { key: "group", label: "group", of: (row) => row.group, text: (row) => row.group, class: "name wide" },
  { key: "mode", label: "mode", of: (row) => row.mode, text: (row) => row.mode, class: "wide" },
  { key: "status", label: "status", of: (row) => row.status, text: status, made: statusOf },
  { key: "began", label: "began", of: (row) => row.began ?? Infinity, text: (row) => moment(row.began), class: "number wide" },
  { key: "seconds", label: "time", of: (row) => row.seconds ?? -1, text: (row) => seconds(row.seconds), class: "number" },
  { key: "waiting", label: "waits", of: (row) => glance(row).waiting ?? -1, text: (row) => share(glance(row).waiting), class: "number" },
  { key: "cores", label: "cores", of: (row) => glance(row).cores ?? -1, text: (row) => number(glance(row).cores), class: "number wide" },
  { key: "memory", label: "memory", of: (row) => glance(row).rss_bytes ?? -1, text: (row) => bytes(glance(row).rss_bytes), class: "number wide" },
  { key: "logged", label: "logs", of: logged, text: logged, class: "name wide" },
];
const BAD = new Set(["failed", "out_of_memory", "timed_out", "killed", "lost"]);
const order = new Intl.Collator("en", { numeric: true }).compare;

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

// A row that changes is another object: what is searched in one is put together once.
const TEXT = Symbol("text");
function textOf(row) {
  if (row[TEXT] === undefined) {
    const parameters = Object.entries(row.parameters).map(([name, value]) => `${name}=${value}`);
    row[TEXT] = [row.id, row.name, row.group, row.mode, row.status, row.reason, ...parameters].join(" ").toLowerCase();
  }
  return row[TEXT];
}

function matches(row, words) {
  const text = textOf(row);
  return words.every((word) => (word.startsWith("-") && word.length > 1 ? !text.includes(word.slice(1)) : text.includes(word)));
}

export const wordsOf = (text) => (text || "").toLowerCase().split(/\s+/).filter(Boolean);

// The rows that an address asks for, pinned ones first.
export function wanted(query) {
  const words = wordsOf(query.get("filter"));
  const pinned = new Set(query.getAll("pin"));
  const sort = query.get("sort") || "-added";
  let found = [...known.rows.values()].filter((row) => pinned.has(row.id) || matches(row, words));
  const down = sort.startsWith("-") ? -1 : 1;
  const column = COLUMNS.find((each) => each.key === sort.replace(/^-/, ""));
  if (column) {
    const keyed = found.map((row) => [column.of(row), row]);
    found = keyed.sort(([a], [b]) => down * (typeof a === "number" ? a - b || 0 : order(a, b))).map(([, row]) => row);
  } else if (down < 0) found.reverse();
  return [...found.filter((row) => pinned.has(row.id)), ...found.filter((row) => !pinned.has(row.id))];
}

export function open(place) {
  let most = AT_ONCE;
  let at = "";
  let asking = false;
  let rows = [];
  const lines = new Map();
  const search = element("input", {
    type: "search", placeholder: "Filter: words, -words, lr=0.1", "aria-label": "Filter runs", oninput: () => set({ filter: search.value }),
  });
  search.value = read().query.get("filter") || "";
  const grouping = button("Group", () => set({ group: read().query.get("group") ? "" : "1" }));
  const toCompare = button("Compare", () => go("compare", { run: read().query.getAll("run") }));
  const count = element("span", { class: "soft", "aria-live": "polite" });
  const headings = COLUMNS.map(heading);
  const head = element("thead", {}, element("tr", {}, element("th", { scope: "col" }, element("span", { class: "soft" }, "show")), headings.map((each) => each.cell)));
  const body = element("tbody");
  const empty = element("tr", {}, noRuns("td", { colspan: COLUMNS.length + 1 }));
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

  // The line of a run, made once; `show` changes of it what has changed.
  function line(row) {
    const name = `${row.name} of ${row.group}`;
    const box = element("input", { type: "checkbox", "aria-label": `Compare ${name}`, onchange: () => toggle("run", row.id) });
    const pin = button("", () => toggle("pin", row.id), { "aria-label": `Pin ${name}` });
    const cells = COLUMNS.map((column) => element("td", { class: column.class }));
    const drawn = [];
    const made = element("tr", { "data-id": row.id }, element("td", {}, box, pin), cells);
    return {
      made,
      show(row, chosen, pinned) {
        box.checked = chosen;
        if (pin.getAttribute("aria-pressed") !== String(pinned)) {
          pin.textContent = pinned ? "★" : "☆";
          pin.setAttribute("aria-pressed", String(pinned));
        }
        made.classList.toggle("at", row.id === at);
        COLUMNS.forEach((column, place) => {
          const text = column.text(row);
          if (text === drawn[place]) return;
          drawn[place] = text;
          cells[place].replaceChildren(column.made ? column.made(row) : text);
        });
      },
    };
  }

  function groupLine(row) {
    const title = `${row.group} (${row.mode})`;
    const made = element("tr", { class: "group" }, element("th", { colspan: COLUMNS.length + 1, scope: "rowgroup" }, title, " ", element("small", { class: "soft id" }, row.group_id)));
    return { made };
  }

  function heading(column) {
    let next = "";
    const sorter = button(column.label, () => set({ sort: next }));
    const cell = element("th", { scope: "col", class: column.class?.replace("name", "") }, sorter);
    return {
      cell,
      show(sort) {
        const [down, up] = [sort === `-${column.key}`, sort === column.key];
        next = down ? column.key : up ? "" : `-${column.key}`;
        sorter.textContent = column.label + (down ? " ↓" : up ? " ↑" : "");
        if (down || up) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
        else cell.removeAttribute("aria-sort");
      },
    };
  }

  function lineOf(key, make, row) {
    if (!lines.has(key)) lines.set(key, make(row));
    return lines.get(key);
  }

  let sorted;
  function draw() {
    const { query } = read();
    rows = wanted(query);
    const [chosen, pinned, grouped] = [new Set(query.getAll("run")), new Set(query.getAll("pin")), Boolean(query.get("group"))];
    const text = `${rows.length} of ${known.rows.size} runs`;
    if (count.textContent !== text) count.textContent = text;
    grouping.setAttribute("aria-pressed", String(grouped));
    toCompare.disabled = !chosen.size;
    const sort = query.get("sort") || "-added";
    if (sort !== sorted) for (const each of headings) each.show(sort);
    sorted = sort;
    if (grouped) {
      const first = new Map();
      for (const row of rows) if (!first.has(row.group_id)) first.set(row.group_id, first.size);
      rows.sort((a, b) => first.get(a.group_id) - first.get(b.group_id));
    }
    const shown = rows.slice(0, most);
    const elements = [];
    shown.forEach((row, place) => {
      if (grouped && row.group_id !== shown[place - 1]?.group_id) elements.push(lineOf(`group ${row.group_id}`, groupLine, row).made);
      const its = lineOf(row.id, line, row);
      its.show(row, chosen.has(row.id), pinned.has(row.id));
      elements.push(its.made);
    });
    arrange(body, known.rows.size ? elements : [empty]);
    for (const [key, each] of lines) if (!each.made.isConnected) lines.delete(key);
    summarise(shown.filter((row) => row.ended && !known.glances[row.id]?.whole));
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
    const place = rows.findIndex((row) => row.id === at);
    if (event.key === "/") search.focus();
    else if (event.key === "j" || event.key === "k") {
      const next = Math.min(Math.max(place + (event.key === "j" ? 1 : -1), 0), rows.length - 1);
      at = rows[next]?.id;
      most = Math.max(most, next + 1);
      draw();
      body.querySelector(".at")?.scrollIntoView({ block: "nearest" });
    } else if (event.key === "x" && rows[place]) toggle("run", at);
    else if (event.key === "p" && rows[place]) toggle("pin", at);
    else if (event.key === "Enter" && rows[place] && event.target === document.body) location.hash = `#/run/${at}`;
    else return false;
    return true;
  }

  draw();
  return { changed: draw, key };
}
