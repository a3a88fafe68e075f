// All of one run: its charts, what it printed, its files, what it was, its series.

import { charts, inOrder, MOST_CHARTS } from "./charts.js";
import { left } from "./columns.js";
import { ask, askAgain, colour, known } from "./data.js";
import { controls, drawing, range, setRange } from "./drawing.js";
import { button, dot, element, term, update } from "./elements.js";
import { notesOf, stopper } from "./notes.js";
import { isLogged, logged, pathOf } from "./logged.js";
import { openInPerfetto } from "./perfetto.js";
import { pinned } from "./placing.js";
import { bytes, moment, number, seconds, shown } from "./figures.js";

const FOLDED = 9;
const MOST_SERIES = 200; // in the table of figures
const IS_TRACE = /(^|\/)torch-[^/]*\.json$|\.trace\.json(\.gz)?$/;
// What colours a terminal, and moves its cursor.
const COLOURS = /\x1b\[[0-9;?]*[A-Za-z]/g;

function files(id, found) {
  const rows = found.map(([name, nbytes]) => {
    const path = pathOf(id, name);
    return element("tr", { "data-id": name },
      element("td", {}, element("a", { href: path, download: name.split("/").pop() }, name)), element("td", { class: "number" }, bytes(nbytes)),
      element("td", {}, IS_TRACE.test(name) && button("Open in Perfetto", () => openInPerfetto(path, name), { "aria-label": `Open ${name} in Perfetto` })));
  });
  return found.length > 0 && [
    element("h2", {}, "Files"),
    found.some(([name]) => IS_TRACE.test(name)) && element("p", { class: "soft" },
      "Perfetto is loaded from ui.perfetto.dev. It is handed the trace within your browser, from tab to tab: nothing is uploaded."),
    element("div", { class: "scroll" }, element("table", { "aria-label": "Files" }, element("tbody", {}, rows))),
  ];
}

export function open(place, address) {
  const id = address.rest[0];
  let state = "";
  let asking = false;
  let closed = false;
  let run = null;
  let written = null; // its files
  let drawn = [];
  let most = MOST_SERIES;

  const entry = (name, value) => (value ? term(name, value) : []);
  const how = controls(() => draw());
  const [head, first, rest, printed, saved, about] = Array.from({ length: 6 }, () => element("div"));
  const tools = element("div", { class: "tools", hidden: true }, how.elements, button("All of it (0)", () => zoom(null)));
  const more = element("details", { hidden: true, ontoggle: () => show() }, element("summary"), rest);
  const [notes, others, stop] = [notesOf(id), logged(id), stopper()];
  place.append(head, element("div", { class: "tools" }, stop), notes, tools, first, others.place, more, printed, saved, about);

  function zoom(next) {
    setRange(next);
    for (const each of drawn) each.redraw();
  }

  // Its series as charts, drawn anew as they are asked for.
  function draw() {
    for (const each of drawn) each.close();
    first.replaceChildren();
    rest.replaceChildren();
    drawn = [first, rest].map((where) => charts(where, { ...drawing(), zoomed: zoom, placed: show }));
    show();
  }

  function show() {
    const lines = [{ id, label: run.name, colour: colour(id) }];
    const all = inOrder(run.series);
    const wanted = (some) => new Map(some.slice(0, MOST_CHARTS).map(([name, title]) => [name, { title, lines }]));
    const isTold = ([name, { place }]) => place < FOLDED || pinned().includes(name);
    const [told, folded] = [all.filter(isTold), all.filter((each) => !isTold(each))];
    tools.hidden = !all.length;
    more.hidden = !folded.length;
    more.firstChild.textContent = `${folded.length} more series`;
    how.offer(all.map(([name]) => name));
    drawn[0].show(wanted(told));
    if (more.open) drawn[1].show(wanted(folded));
  }

  function tell() {
    const parameters = Object.entries(run.parameters).map(([name, value]) => `${name}=${value}`).join("  ");
    const git = run.environment?.git;
    const row = known.rows.get(id);
    const ahead = row && left(row);
    update(head, element("div", {},
      element("h2", {}, dot(colour(run.id)), run.name),
      element("p", {}, run.status.replaceAll("_", " ") + (run.exit_code ? `, exit code ${run.exit_code}` : "") + (run.reason ? `: ${run.reason}` : ""),
        ` · ${seconds(run.seconds)}${ahead ? `, about ${seconds(Math.round(ahead.seconds))} left (${ahead.text})` : ""} · ${run.group} (${run.mode}) · `,
        element("a", { href: `#/compare?run=${encodeURIComponent(run.id)}` }, "Compare"), " · ",
        element("a", { href: `#/time?group=${encodeURIComponent(run.group_id)}` }, "Where its time goes")),
      run.damage && element("p", {}, element("strong", {}, run.damage))));
    const before = printed.querySelector("pre");
    const follows = !before || before.scrollTop + before.clientHeight > before.scrollHeight - 5;
    update(printed, element("div", {},
      element("h2", {}, "Output"),
      run.output ? element("pre", { tabindex: "0", role: "group", "aria-label": "What it printed last" }, run.output.replace(COLOURS, "")) : element("p", { class: "soft" }, "It has printed nothing.")));
    update(about, element("div", {},
      element("h2", {}, "About it"),
      element("dl", {},
        entry("id", run.id), entry("began", moment(run.began)), entry("parameters", parameters), entry("command", run.command.join(" ")), entry("in", run.directory),
        entry("git", git && `${git.commit.slice(0, 12)}${git.diff ? ", with changes that were not committed" : ""}`),
        entry("driver", run.environment?.driver)),
      element("h2", {}, "Series"),
      element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Series" }, element("table", {},
        element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "series"), ["last", "mean", "unit", "points"].map((label) => element("th", { scope: "col", class: "number" }, label)))),
        element("tbody", {}, Object.entries(run.series).slice(0, most).map(([name, each]) => element("tr", {},
          element("td", {}, name), element("td", { class: "number" }, shown(each.unit, each.last)),
          element("td", { class: "number" }, shown(each.unit, each.mean)), element("td", { class: "number" }, each.unit), element("td", { class: "number" }, number(each.points))))))),
      Object.keys(run.series).length > most && button(`Show all ${Object.keys(run.series).length} series`, () => { most = Infinity; tell(); })));
    const output = printed.querySelector("pre");
    if (output && follows) output.scrollTop = output.scrollHeight;
  }

  async function changed() {
    const row = known.rows.get(id);
    notes.hidden = !row;
    notes.show();
    stop.show(row ? [row] : []);
    const now = row ? `${row.status} ${row.ended ? 0 : Math.floor(row.seconds / 2)}` : "unknown";
    if (now === state || asking) return;
    const ended = row?.ended && state !== "";
    state = now;
    asking = true;
    const path = `/api/runs/${encodeURIComponent(id)}`;
    const [found, its] = await Promise.all([ask(path), askAgain(`${path}/files`, written)]).finally(() => { asking = false; });
    if (closed) return;
    run = found;
    tell();
    if (its !== written) update(saved, element("div", {}, files(id, its.value.filter(([name]) => !isLogged(name)))));
    written = its;
    others.show(written.value);
    if (drawn.length) show();
    else draw();
    if (ended) for (const each of drawn) each.redraw(); // what it has logged last came behind the last look
  }

  function key(event) {
    if (event.key !== "0" || !range()) return false;
    zoom(null);
    return true;
  }

  changed();
  return { changed, key, close: () => { closed = true; others.close(); for (const each of drawn) each.close(); } };
}
