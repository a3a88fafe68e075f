// Series of several runs on one time line, one chart a series.

import { change, read } from "/page/address.js";
import { ask, colour, known } from "/page/data.js";
import { button, dot, element } from "/page/elements.js";
import { charts } from "/page/charts.js";
import { wanted } from "/page/runs.js";

const FIRST = ["feed.wait_s", "gpm.0.sm_active_percent", "gpu.0.utilisation_percent", "proc.cpu_s", "loss", "proc.rss_bytes"];
const LOOK_S = 5;
const MOST_RUNS = 20;

export function open(place) {
  const { query } = read();
  const range = () => (read().query.get("range")?.split(",").map(Number) ?? null);
  const ids = () => {
    const chosen = read().query.getAll("run").filter((id) => known.rows.has(id));
    return chosen.length ? chosen.slice(0, MOST_RUNS) : wanted(new URLSearchParams()).slice(0, 4).map((row) => row.id);
  };
  let drawn = null;
  let units = new Map();

  const relative = () => read().query.get("clock") !== "1";
  const clock = button("Time of day", () => {
    change({ clock: relative() ? "1" : "", range: "" });
    rebuild();
  });
  const all = button("All of the time (0)", () => zoom(null));
  const filter = element("input", {
    type: "search", placeholder: "Filter series: words", "aria-label": "Filter series",
    oninput: () => { change({ series: filter.value }); show(); },
  });
  filter.value = query.get("series") || "";
  const legend = element("div", { class: "legend" });
  const note = element("p", { class: "soft" });
  const body = element("div");
  place.append(element("div", { class: "tools" }, filter, clock, all), legend, note, body);

  function zoom(next) {
    change({ range: next ? next.map((each) => Number(each.toFixed(3))).join(",") : "" });
    drawn?.redraw();
  }

  async function rebuild() {
    drawn?.close();
    body.replaceChildren();
    drawn = charts(body, { relative: relative(), range, zoomed: zoom });
    clock.setAttribute("aria-pressed", String(!relative()));
    const chosen = ids();
    if (!chosen.length) {
      body.append(element("p", { class: "empty" }, "No runs yet. Start one with: penstock run train.py"));
      return;
    }
    await look(chosen);
    legend.replaceChildren(...chosen.map((id) => {
      const row = known.rows.get(id);
      const drop = button("×", () => { change({ run: chosen.filter((each) => each !== id) }); rebuild(); }, { "aria-label": `Leave out ${row.name}` });
      return element("span", {}, dot(colour(id)), element("a", { href: `#/run/${id}` }, `${row.name} (${row.group}, ${row.mode})`), " ", chosen.length > 1 && drop);
    }));
    show();
  }

  // Which series there are, and in which order they are shown.
  async function look(chosen) {
    const details = await Promise.all(chosen.map((id) => ask(`/api/runs/${id}`)));
    const there = details.flatMap((each) => Object.entries(each.series).map(([name, { unit }]) => [name, unit]));
    const place = (name) => FIRST.indexOf(name) + 1 || 99;
    units = new Map(there.sort(([a], [b]) => place(a) - place(b) || a.localeCompare(b)));
  }

  function show() {
    const words = (read().query.get("series") || "").toLowerCase().split(/\s+/).filter(Boolean);
    const found = [...units.keys()].filter((name) => words.every((word) => name.toLowerCase().includes(word)));
    note.textContent = units.size && !found.length ? "No series has these words." : "";
    const lines = (name) => ids().map((id) => ({ id, series: name, label: known.rows.get(id).name }));
    drawn?.show(new Map(found.map((name) => [name, { unit: units.get(name), lines: lines(name) }])));
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

  let shownIds = null;
  let looked = 0;
  async function changed() {
    const chosen = ids();
    if (chosen.join() !== shownIds) {
      shownIds = chosen.join();
      await rebuild();
    } else if (chosen.some((id) => !known.rows.get(id).ended) && Date.now() - looked > 1000 * LOOK_S) {
      looked = Date.now(); // a run may begin to log something
      await look(chosen);
      if (body.isConnected) show();
    }
  }
  changed();
  return { changed, key, close: () => drawn?.close() };
}
