// The table of runs: filter, sort, group, pin, choose runs and columns.

import { change, go, read } from "./address.js";
import { ascends, bestOf, columnOf, columnsOf, compared, equals, grouper, groupings, limit, MOST_OFFERED, offered } from "./columns.js";
import { colourOfGroup, known, summarise } from "./data.js";
import { arrange, button, dot, element, fill, noRuns } from "./elements.js";
import { actions } from "./notes.js";
import { tableSavers } from "./saving.js";

const AT_ONCE = 50;
const MOST_COMPARED = 200;

// A row that changes is another object: what is searched in one is put together once.
const TEXT = Symbol("text");
function textOf(row) {
  if (row[TEXT] === undefined) {
    const parameters = Object.entries(row.parameters).map(([name, value]) => `${name}=${value}`);
    const noted = [row.note, ...row.tags.map((tag) => `tag:${tag}`), row.archived ? "archived" : ""];
    row[TEXT] = [row.id, row.name, row.group, row.mode, row.status, row.reason, ...parameters, ...noted].join(" ").toLowerCase();
  }
  return row[TEXT];
}

const FIELDS = ["id", "name", "group", "mode", "status"];

// Whether a row has a word: status=failed asks of that field, lr=0.001 of the number, be it written 1e-3.
function says(row, word) {
  if (textOf(row).includes(word)) return true;
  const at = word.indexOf("=");
  const [name, value] = [word.slice(0, Math.max(0, at)), word.slice(at + 1)];
  if (name === "tag") return row.tags.some((tag) => tag.toLowerCase() === value);
  return FIELDS.includes(name) ? String(row[name] ?? "").toLowerCase().includes(value) : Boolean(name && equals(name, value)?.(row));
}

function matches(row, words) {
  return words.every((word) => limit(word)?.(row) ?? (word.startsWith("-") && word.length > 1 ? !says(row, word.slice(1)) : says(row, word)));
}

export const wordsOf = (text) => (text || "").toLowerCase().split(/\s+/).filter(Boolean);

// The rows that an address asks for, pinned ones first.
export function wanted(query) {
  const words = wordsOf(query.get("filter"));
  const pinned = new Set(query.getAll("pin"));
  const sort = query.get("sort") || "-added";
  const archived = query.get("archived");
  let found = [...known.rows.values()].filter((row) => pinned.has(row.id) || ((archived || !row.archived) && matches(row, words)));
  const down = sort.startsWith("-") ? -1 : 1;
  const column = columnOf(sort.replace(/^-/, ""));
  if (column) {
    const keyed = found.map((row) => [column.of(row), row]);
    found = keyed.sort(([a], [b]) => compared(a, b, down)).map(([, row]) => row);
  } else if (down < 0) found.reverse();
  return [...found.filter((row) => pinned.has(row.id)), ...found.filter((row) => !pinned.has(row.id))];
}

export function open(place) {
  let most = AT_ONCE;
  let at = "";
  let rows = [];
  const lines = new Map();
  const search = element("input", {
    type: "search", placeholder: "Filter: words, -words, lr=0.1, loss<2, waits>50", "aria-label": "Filter runs", oninput: () => set({ filter: search.value }),
  });
  search.value = read().query.get("filter") || "";
  const grouping = element("select", { "aria-label": "Group by", onchange: () => set({ group: grouping.value }) });
  const columnList = element("div");
  const seek = element("input", { type: "search", placeholder: "Search", "aria-label": "Search columns", oninput: () => offer() });
  const choices = element("div", { class: "columns", hidden: true }, seek, columnList);
  const choosing = element("details", { class: "choosing", ontoggle: () => { choices.hidden = !choosing.open; offer(); draw(); } }, element("summary", {}, "Columns"), choices);
  const leave = (event) => { if (event.key === "Escape" || (event.type === "pointerdown" && !choosing.contains(event.target))) choosing.open = false; };
  for (const kind of ["pointerdown", "keydown"]) document.addEventListener(kind, leave);
  const archived = element("input", { type: "checkbox", onchange: () => set({ archived: archived.checked ? "1" : "" }) });
  const showArchived = element("label", {}, archived, " Show archived");
  const all = element("input", { type: "checkbox", "aria-label": "Choose all", onchange: () => set({ run: all.checked ? rows.map((row) => row.id) : [] }) });
  const acts = actions();
  const toCompare = button("Compare", () => { // those that are chosen; else all that are shown, by the parameter of their groups
    const chosen = read().query.getAll("run");
    go("compare", { run: chosen.length ? chosen : rows.slice(0, MOST_COMPARED).map((row) => row.id), group: grouping.value.startsWith("param:") ? [grouping.value] : [] });
  });
  const toParameters = button("Parameters", () => go("parameters", { run: read().query.getAll("run"), filter: search.value ? [search.value] : [] }));
  const count = element("span", { class: "soft", "aria-live": "polite" });
  let columns = [];
  let bests = []; // of each column
  let headings = [];
  const head = element("thead");
  const body = element("tbody");
  const empty = element("tr", {}, noRuns("td", {}));
  const none = element("tr", {}, element("td", { class: "empty" }));
  const more = button("Show more", () => { most += AT_ONCE; draw(); });
  const table = element("div", { class: "scroll" }, element("table", { "aria-label": "Runs" }, head, body));
  place.append(element("div", { class: "tools" }, search, element("label", {}, "group by ", grouping), choosing, showArchived, toCompare, toParameters, acts.elements, tableSavers("runs", texts, numbers), count), acts.said, table, more);

  function set(changes) {
    change(changes);
    draw();
  }

  // All rows that the filter lets through, as they are shown.
  function texts() {
    return [columns.map(({ label }) => label), ...rows.map((row) => columns.map((column) => String(column.text(row))))];
  }

  // The same, but for numbers as they are.
  function numbers() {
    const isNumber = (column, row) => !column.key.startsWith("param:") && Number.isFinite(column.of(row)); // a parameter's text is its number
    const plain = (column, row) => (isNumber(column, row) ? column.of(row) : column.text(row));
    return [columns.map(({ label, unit }) => (unit ? `${label}, ${unit}` : label)), ...rows.map((row) => columns.map((column) => plain(column, row)))];
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
    const cells = columns.map((column) => element("td", { class: column.class }));
    const drawn = [];
    const isBest = [];
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
        columns.forEach((column, place) => {
          const text = column.text(row);
          if (bests[place] !== undefined || isBest[place]) {
            isBest[place] = bests[place] !== undefined && column.of(row) === bests[place];
            cells[place].classList.toggle("best", isBest[place]);
            cells[place].title = isBest[place] ? "the best of those shown" : "";
          }
          if (text === drawn[place]) return;
          drawn[place] = text;
          const [before, now] = [cells[place].firstChild, column.made ? column.made(row, cells[place].firstChild) : text];
          if (now === before) now.show();
          else cells[place].replaceChildren(now);
        });
      },
    };
  }

  // The heading of a group, with a box for all of its runs.
  function groupLine(row, key, by) {
    const title = by.called(row);
    const box = element("input", { type: "checkbox", "aria-label": `Compare all of ${title}`, onchange: () => {
      const its = rows.filter((each) => by.key(each) === key).map(({ id }) => id);
      set({ run: [...read().query.getAll("run").filter((id) => !its.includes(id)), ...(box.checked ? its : [])] });
    } });
    const id = key === row.group_id && element("small", { class: "soft id" }, row.group_id);
    return { box, made: element("tr", { class: "group" }, element("th", { colspan: columns.length + 1, scope: "rowgroup" }, box, dot(colourOfGroup(key)), title, " ", id)) };
  }

  // The heading, and lines that are made anew, once other columns are wanted, and nobody is writing a note in one.
  function arrangeColumns(wantedColumns) {
    if (body.querySelector("textarea")) return;
    if (wantedColumns.map(({ key }) => key).join("\n") === columns.map(({ key }) => key).join("\n") && headings.length) return;
    columns = wantedColumns;
    headings = columns.map(heading);
    head.replaceChildren(element("tr", {}, element("th", { scope: "col" }, all), headings.map((each) => each.cell)));
    for (const each of [empty, none]) each.firstChild.setAttribute("colspan", columns.length + 1);
    lines.clear();
    sorted = undefined;
  }

  // What can be shown, as boxes.
  function offer() {
    if (!choosing.open) return;
    const shown = new Set(columns.map(({ key }) => key));
    const toggleColumn = (key) => {
      const keys = columns.map((each) => each.key);
      const after = keys.indexOf("name") + 1; // in sight
      set({ col: keys.includes(key) ? keys.filter((each) => each !== key) : [...keys.slice(0, after), key, ...keys.slice(after)] });
      offer();
    };
    const words = wordsOf(seek.value);
    const fits = ([name]) => words.every((word) => name.toLowerCase().includes(word));
    columnList.replaceChildren(...offered([...known.rows.values()]).map(([title, entries]) => [title, entries.filter(fits)]).flatMap(([title, entries]) => [
      entries.length > 0 && element("h4", {}, title),
      ...entries.slice(0, MOST_OFFERED).map(([name, keys]) => element("div", {}, name, " ", keys.map(([key, kind]) => element("label", {},
        element("input", { type: "checkbox", "aria-label": `Column ${kind} ${name}`.replace("  ", " "), checked: shown.has(key), onchange: () => toggleColumn(key) }), kind)))),
      entries.length > MOST_OFFERED && element("p", { class: "soft" }, `… and ${entries.length - MOST_OFFERED} more: search for them`),
    ]).filter(Boolean), button("As at first", () => { set({ col: "" }); offer(); }));
  }

  function heading(column) {
    let next = "";
    const sorter = button(column.label, () => set({ sort: next }));
    const cell = element("th", { scope: "col", class: column.class?.replace("name", "") }, sorter);
    return {
      cell,
      show(sort) {
        const [down, up] = [sort === `-${column.key}`, sort === column.key];
        const [first, second] = ascends(column) ? [column.key, `-${column.key}`] : [`-${column.key}`, column.key];
        next = sort === first ? second : sort === second ? "" : first;
        sorter.textContent = column.label + (down ? " ↓" : up ? " ↑" : "");
        if (down || up) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
        else cell.removeAttribute("aria-sort");
      },
    };
  }

  function whyNone() {
    const words = search.value.trim();
    const hidden = archived.checked ? 0 : [...known.rows.values()].filter((row) => row.archived).length;
    return `${words && `No run fits “${words}”: all of its words must. `}${hidden ? `${hidden} archived run${hidden > 1 ? "s are" : " is"} not shown.` : ""}`;
  }

  function lineOf(key, make, ...rest) {
    if (!lines.has(key)) lines.set(key, make(...rest));
    return lines.get(key);
  }

  let sorted;
  function draw() {
    const { query } = read();
    rows = wanted(query);
    const [chosen, pinned, grouped] = [new Set(query.getAll("run")), new Set(query.getAll("pin")), query.get("group") || ""];
    const by = grouper(grouped);
    const groupOf = by.key;
    const text = `${rows.length} of ${known.rows.size} runs`;
    if (count.textContent !== text) count.textContent = text;
    arrangeColumns(columnsOf(query, rows));
    fill(grouping, [["", "nothing"], ...groupings([...known.rows.values()])], grouped);
    toCompare.disabled = !rows.length;
    archived.checked = query.has("archived");
    showArchived.hidden = !archived.checked && ![...known.rows.values()].some((row) => row.archived);
    all.checked = rows.length > 0 && rows.every((row) => chosen.has(row.id));
    acts.show(rows.filter((row) => chosen.has(row.id)));
    const sort = query.get("sort") || "-added";
    if (sort !== sorted) for (const each of headings) each.show(sort);
    sorted = sort;
    if (grouped) {
      const first = new Map();
      for (const row of rows) if (!first.has(groupOf(row))) first.set(groupOf(row), first.size);
      rows.sort((a, b) => first.get(groupOf(a)) - first.get(groupOf(b)));
    }
    bests = columns.map((column) => bestOf(column, rows));
    const shown = rows.slice(0, most);
    const partly = new Set(grouped ? rows.filter((row) => !chosen.has(row.id)).map(groupOf) : []); // groups of which not all are chosen
    const elements = [];
    shown.forEach((row, place) => {
      if (grouped && (!place || groupOf(row) !== groupOf(shown[place - 1]))) {
        const its = lineOf(`group ${grouped} ${groupOf(row)}`, groupLine, row, groupOf(row), by);
        its.box.checked = !partly.has(groupOf(row));
        elements.push(its.made);
      }
      const its = lineOf(row.id, line, row);
      its.show(row, chosen.has(row.id), pinned.has(row.id));
      elements.push(its.made);
    });
    if (!elements.length) elements.push(known.rows.size ? none : empty);
    if (elements[0] === none) none.firstChild.textContent = whyNone();
    arrange(body, elements);
    for (const [key, each] of lines) if (!each.made.isConnected) lines.delete(key);
    const isOrdered = columnOf(sort.replace(/^-/, ""))?.ofMetric || wordsOf(query.get("filter")).some(limit);
    summarise(isOrdered || choosing.open ? [...known.rows.values()] : shown, () => {
      if (!body.isConnected) return;
      draw();
      if (!columnList.contains(document.activeElement)) offer();
    });
    more.hidden = rows.length <= most;
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
  return { changed: draw, key, close: () => { for (const kind of ["pointerdown", "keydown"]) document.removeEventListener(kind, leave); } };
}
