// All of one run: what it was, what it printed, its files, its series.

import { ask, colour, known } from "./data.js";
import { button, dot, element, term, update } from "./elements.js";
import { openInPerfetto } from "./perfetto.js";
import { bytes, moment, seconds, shown } from "./figures.js";

const IS_TRACE = /(^|\/)torch-[^/]*\.json$|\.trace\.json(\.gz)?$/;
// What colours a terminal, and moves its cursor.
const COLOURS = /\x1b\[[0-9;?]*[A-Za-z]/g;

function files(id, found) {
  const rows = found.map(([name, nbytes]) => {
    const path = `/api/runs/${encodeURIComponent(id)}/files/${name.split("/").map(encodeURIComponent).join("/")}`;
    return element("tr", { "data-id": name },
      element("td", {}, element("a", { href: path, download: name.split("/").pop() }, name)), element("td", { class: "number" }, bytes(nbytes)),
      element("td", {}, IS_TRACE.test(name) && button("Open in Perfetto", () => openInPerfetto(path, name), { "aria-label": `Open ${name} in Perfetto` })));
  });
  return [
    element("h2", {}, "Files"),
    found.some(([name]) => IS_TRACE.test(name)) && element("p", { class: "soft" },
      "Perfetto is loaded from ui.perfetto.dev. It is handed the trace within your browser, from tab to tab: nothing is uploaded."),
    element("div", { class: "scroll" }, element("table", { "aria-label": "Files" }, element("tbody", {}, rows))),
  ];
}

export function open(place, address) {
  const id = address.rest[0];
  let drawn = "";
  let asking = false;
  let closed = false;

  const entry = (name, value) => (value ? term(name, value) : []);

  async function changed() {
    const row = known.rows.get(id);
    const state = row ? `${row.status} ${row.ended ? 0 : Math.floor(row.seconds / 2)}` : "unknown";
    if (state === drawn || asking) return;
    drawn = state;
    asking = true;
    const both = ["", "/files"].map((what) => ask(`/api/runs/${encodeURIComponent(id)}${what}`));
    const [run, written] = await Promise.all(both).finally(() => { asking = false; });
    if (closed) return;
    const parameters = Object.entries(run.parameters).map(([name, value]) => `${name}=${value}`).join("  ");
    const git = run.environment?.git;
    const before = place.querySelector("pre");
    const follows = !before || before.scrollTop + before.clientHeight > before.scrollHeight - 5;
    update(place, element("div", {},
      element("h2", {}, dot(colour(run.id)), run.name),
      element("dl", {},
        entry("status", run.status.replaceAll("_", " ") + (run.exit_code ? `, exit code ${run.exit_code}` : "") + (run.reason ? `: ${run.reason}` : "")),
        entry("group", `${run.group} (${run.mode})`), entry("id", run.id), entry("began", moment(run.began)), entry("time", seconds(run.seconds)),
        entry("parameters", parameters), entry("command", run.command.join(" ")), entry("in", run.directory),
        entry("git", git && `${git.commit.slice(0, 12)}${git.diff ? ", with changes that were not committed" : ""}`),
        entry("driver", run.environment?.driver)),
      element("p", {}, element("a", { href: `#/compare?run=${encodeURIComponent(run.id)}` }, "Its charts"), " · ",
        element("a", { href: `#/time?group=${encodeURIComponent(run.group_id)}` }, "Where its time goes")),
      element("h2", {}, "Output"),
      run.output ? element("pre", { tabindex: "0", "aria-label": "What it printed last" }, run.output.replace(COLOURS, "")) : element("p", { class: "soft" }, "It has printed nothing."),
      written.length ? files(run.id, written) : null,
      element("h2", {}, "Series"),
      element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Series" }, element("table", {},
        element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "series"), ["last", "mean", "unit", "points"].map((label) => element("th", { scope: "col", class: "number" }, label)))),
        element("tbody", {}, Object.entries(run.series).map(([name, each]) => element("tr", {},
          element("td", {}, name), element("td", { class: "number" }, shown(each.unit, each.last)),
          element("td", { class: "number" }, shown(each.unit, each.mean)), element("td", { class: "number" }, each.unit), element("td", { class: "number" }, each.points.toLocaleString("en")))))))));
    const output = place.querySelector("pre");
    if (output && follows) output.scrollTop = output.scrollHeight;
  }
  changed();
  return { changed, close: () => { closed = true; } };
}
