// Series of several runs on one time line, one chart a series: a line a run, or a line a group.

import { change, go, read } from "./address.js";
import { grouper, groupings } from "./columns.js";
import { ask, colour, colourOfGroup, distinct, known } from "./data.js";
import { button, dot, element, fill, noRuns } from "./elements.js";
import { charts, inOrder, MOST_CHARTS } from "./charts.js";
import { differences } from "./differences.js";
import { BANDS, controls, drawing, range, setRange } from "./drawing.js";
import { wanted, wordsOf } from "./runs.js";

const LOOK_S = 5;
const MOST_RUNS = 20;
const MOST_LINES = 20;
const MOST_GROUPED = 200;

// Runs by their names, with their ids where two have one name.
function labels(ids) {
  const names = ids.map((id) => known.rows.get(id).name);
  return (id) => {
    const { name } = known.rows.get(id);
    return names.filter((each) => each === name).length > 1 ? `${name} ${id}` : name;
  };
}

// A line for each group of runs: their mean.
function ofGroups(ids, by) {
  const { key, called } = grouper(by);
  const groups = new Map();
  for (const row of ids.map((id) => known.rows.get(id))) groups.set(key(row), [...(groups.get(key(row)) || []), row]);
  const names = [...groups.values()].map(([row]) => called(row));
  return [...groups].map(([key, rows], at) => {
    const also = names.indexOf(names[at]) === names.lastIndexOf(names[at]) ? "" : ` ${rows[0].group_id}`;
    return { id: rows.map(({ id }) => id).join(), label: `${names[at]}${also}`, colour: colourOfGroup(key) };
  });
}

export function open(place) {
  const { query } = read();
  const by = () => read().query.get("group") || "";
  const ids = () => {
    const chosen = read().query.getAll("run").filter((id) => known.rows.has(id));
    if (by()) return (chosen.length ? chosen : wanted(new URLSearchParams()).map((row) => row.id)).slice(0, MOST_GROUPED);
    return chosen.length ? chosen.slice(0, MOST_RUNS) : wanted(new URLSearchParams()).slice(0, 4).map((row) => row.id);
  };
  const lines = () => {
    if (by()) return distinct(ofGroups(ids(), by()).slice(0, MOST_LINES));
    const label = labels(ids());
    return distinct(ids().map((id) => ({ id, label: label(id), colour: colour(id) })));
  };
  let drawn = null;
  let titles = {};
  let shownIds = null;
  let toldIds = "";
  let wentOn = "";
  let looked = 0;

  const how = controls(() => rebuild());
  const all = button("All of it (0)", () => zoom(null));
  const filter = element("input", {
    type: "search", placeholder: "Filter series: words", "aria-label": "Filter series",
    oninput: () => { change({ series: filter.value }); show(); },
  });
  filter.value = query.get("series") || "";
  const legend = element("div", { class: "legend" });
  const note = element("p", { class: "soft" });
  const body = element("div");
  const told = element("div");
  const isPair = query.getAll("run").length === 2; // of two, that is the question
  const differ = element("details", { class: "differ", hidden: true, open: isPair, ontoggle: () => tellDifferences() }, element("summary", {}, "What differs between them"), told);
  const grouping = element("select", { "aria-label": "Group by", onchange: () => regroup(grouping.value) });
  const band = element("select", { "aria-label": "Band", onchange: () => { change({ band: band.value === BANDS[0][0] ? "" : band.value }); rebuild(); } },
    BANDS.map(([value, text]) => element("option", { value }, text)));
  const grouped = element("span", {}, element("label", {}, "by ", grouping), " ", element("label", {}, "band ", band));
  const kinds = [["Runs", () => regroup("")], ["Groups", () => regroup(grouping.value || "1")]].map(([text, act]) => button(text, act));
  const parameters = button("Parameters", () => go("parameters", { run: ids() }));
  place.append(element("div", { class: "tools" }, filter, element("span", { role: "group", "aria-label": "A line for each of" }, kinds), grouped, how.elements, all, parameters),
    legend, differ, note, body);

  function regroup(next) {
    change({ group: next });
    rebuild();
  }

  async function tellDifferences() {
    const chosen = ids();
    const before = toldIds;
    differ.hidden = chosen.length < 2 || chosen.length > MOST_RUNS;
    toldIds = differ.open && !differ.hidden ? chosen.join() : "";
    if (!toldIds || toldIds === before) return; // one that is open from the beginning is also said to be opened
    const colours = new Map(lines().map((line) => [line.id, line.colour])); // of groups, there are none of single runs
    const table = await differences(chosen, labels(chosen), (id) => colours.get(id) ?? colour(id));
    if (chosen.join() === ids().join()) told.replaceChildren(table);
  }

  function zoom(next) {
    setRange(next);
    drawn?.redraw();
  }

  async function rebuild() {
    drawn?.close();
    body.replaceChildren();
    legend.replaceChildren();
    drawn = charts(body, { ...drawing(), zoomed: zoom, placed: () => show() });
    const chosen = ids();
    fill(grouping, groupings([...known.rows.values()]), by() || "1");
    grouped.hidden = !by();
    band.value = drawing().band;
    kinds.forEach((kind, at) => kind.setAttribute("aria-pressed", String(Boolean(by()) === (at === 1))));
    shownIds = chosen.join();
    wentOn = goingOn(chosen);
    if (!chosen.length) {
      body.append(noRuns());
      return;
    }
    tellDifferences();
    legend.replaceChildren(...lines().map((line, at, all) => {
      const its = line.id.split(",");
      const row = known.rows.get(its[0]);
      const drop = button("×", () => { change({ run: chosen.filter((each) => !its.includes(each)) }); rebuild(); }, { "aria-label": `Leave out ${line.label}` });
      const text = by() ? `${line.label}, ${its.length} run${its.length > 1 ? "s" : ""}` : element("a", { href: `#/run/${line.id}` }, `${line.label} (${row.group}, ${row.mode})`);
      return element("span", {}, dot(line.colour), text, " ", all.length > 1 && drop);
    }), by() ? element("span", { class: "soft" }, `Line: the mean of the runs that have come so far. Band: ${BANDS.find(([each]) => each === drawing().band)[1]}.`) : "");
    await look(chosen);
  }

  // Look which series there are, and show them in their order.
  async function look(chosen) {
    looked = performance.now(); // which no clock that is set moves
    const there = await ask("/api/titles", chosen.map((id) => ["id", id]));
    if (!body.isConnected || chosen.join() !== shownIds) return;
    titles = there;
    how.offer(Object.keys(titles));
    show();
  }

  function show() {
    const words = wordsOf(read().query.get("series"));
    const found = inOrder(titles).filter(([name, { text }]) => words.every((word) => `${name} ${text}`.toLowerCase().includes(word)));
    const chosen = read().query.getAll("run").filter((id) => known.rows.has(id)).length;
    const all = lines();
    const groups = by() ? ofGroups(ids(), by()).length : 0;
    note.textContent = [
      chosen > ids().length && `The first ${ids().length} of ${chosen} chosen runs.`,
      !chosen && !by() && known.rows.size > all.length && `The newest ${all.length} runs: choose others in Runs.`,
      groups > MOST_LINES && `The first ${MOST_LINES} of ${groups} groups.`,
      Object.keys(titles).length && !found.length ? "No series has these words."
        : found.length > MOST_CHARTS && `The first ${MOST_CHARTS} of ${found.length.toLocaleString("en")} series: filter for others.`,
    ].filter(Boolean).join(" ");
    drawn?.show(new Map(found.slice(0, MOST_CHARTS).map(([name, title]) => [name, { title, lines: all }])));
  }

  function key(event) {
    const span = range() || drawn?.span();
    if (event.key === "/") filter.focus();
    else if (event.key === "0") zoom(null);
    else if (!span) return false;
    else if ("+-=".includes(event.key) || event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const [middle, width] = [(span[0] + span[1]) / 2, span[1] - span[0]];
      const factor = event.key === "-" ? 1.5 : event.key.startsWith("Arrow") ? 1 : 1 / 1.5;
      const shift = event.key === "ArrowLeft" ? -width / 4 : event.key === "ArrowRight" ? width / 4 : 0;
      zoom([middle + shift - (width * factor) / 2, middle + shift + (width * factor) / 2]);
    } else return false;
    return true;
  }

  const goingOn = (chosen) => chosen.filter((id) => !known.rows.get(id).ended).join();

  async function changed() {
    const chosen = ids();
    const going = goingOn(chosen);
    if (chosen.join() !== shownIds) await rebuild();
    else if (going !== wentOn) { // what a run has logged last has come behind the last look
      wentOn = going;
      await look(chosen);
      drawn.redraw();
    } else if (going && performance.now() - looked > 1000 * LOOK_S) await look(chosen); // it may begin to log something
  }
  changed();
  return { changed, key, close: () => drawn?.close() };
}
