// Series of several runs on one time line, one chart a series.

import { change, read } from "./address.js";
import { ask, colour, known } from "./data.js";
import { button, dot, element, noRuns } from "./elements.js";
import { charts, inOrder, MOST_CHARTS } from "./charts.js";
import { differences } from "./differences.js";
import { controls, drawing } from "./drawing.js";
import { wanted, wordsOf } from "./runs.js";

const LOOK_S = 5;
const MOST_RUNS = 20;

// Runs by their names, with their ids where two have one name.
function labels(ids) {
  const names = ids.map((id) => known.rows.get(id).name);
  return (id) => {
    const { name } = known.rows.get(id);
    return names.filter((each) => each === name).length > 1 ? `${name} ${id}` : name;
  };
}

export function open(place) {
  const { query } = read();
  const range = () => (read().query.get("range")?.split(",").map(Number) ?? null);
  const ids = () => {
    const chosen = read().query.getAll("run").filter((id) => known.rows.has(id));
    return chosen.length ? chosen.slice(0, MOST_RUNS) : wanted(new URLSearchParams()).slice(0, 4).map((row) => row.id);
  };
  let drawn = null;
  let titles = new Map();
  let shownIds = null;
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
  const differ = element("details", { hidden: true, ontoggle: () => tellDifferences() }, element("summary", {}, "What differs between them"), told);
  place.append(element("div", { class: "tools" }, filter, how.elements, all), legend, differ, note, body);

  async function tellDifferences() {
    const chosen = ids();
    differ.hidden = chosen.length < 2;
    if (!differ.open || differ.hidden) return;
    const table = await differences(chosen, labels(chosen));
    if (chosen.join() === ids().join()) told.replaceChildren(table);
  }

  function zoom(next) {
    change({ range: next ? next.map((each) => Number(each.toFixed(3))).join(",") : "" });
    drawn?.redraw();
  }

  async function rebuild() {
    drawn?.close();
    body.replaceChildren();
    legend.replaceChildren();
    drawn = charts(body, { ...drawing(), range, zoomed: zoom });
    const chosen = ids();
    shownIds = chosen.join();
    wentOn = goingOn(chosen);
    if (!chosen.length) {
      body.append(noRuns());
      return;
    }
    tellDifferences();
    const label = labels(chosen);
    legend.replaceChildren(...chosen.map((id) => {
      const row = known.rows.get(id);
      const drop = button("×", () => { change({ run: chosen.filter((each) => each !== id) }); rebuild(); }, { "aria-label": `Leave out ${row.name}` });
      return element("span", {}, dot(colour(id)), element("a", { href: `#/run/${id}` }, `${label(id)} (${row.group}, ${row.mode})`), " ", chosen.length > 1 && drop);
    }));
    await look(chosen);
  }

  // Look which series there are, and show them in their order.
  async function look(chosen) {
    looked = Date.now();
    const there = await ask("/api/titles", chosen.map((id) => ["id", id]));
    if (!body.isConnected || chosen.join() !== shownIds) return;
    titles = new Map(inOrder(there));
    how.offer([...titles.keys()]);
    show();
  }

  function show() {
    const words = wordsOf(read().query.get("series"));
    const found = [...titles].filter(([name, { text }]) => words.every((word) => `${name} ${text}`.toLowerCase().includes(word)));
    note.textContent = titles.size && !found.length ? "No series has these words."
      : found.length > MOST_CHARTS ? `The first ${MOST_CHARTS} of ${found.length.toLocaleString("en")} series: filter for others.` : "";
    const label = labels(ids());
    const lines = ids().map((id) => ({ id, label: label(id) }));
    drawn?.show(new Map(found.slice(0, MOST_CHARTS).map(([name, title]) => [name, { title, lines }])));
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
    } else if (going && Date.now() - looked > 1000 * LOOK_S) await look(chosen); // it may begin to log something
  }
  changed();
  return { changed, key, close: () => drawn?.close() };
}
