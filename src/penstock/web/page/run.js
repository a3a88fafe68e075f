// All of one run: what it was, what it printed, its series.

import { ask, colour, known } from "/page/data.js";
import { dot, element } from "/page/elements.js";
import { moment, number, seconds, shown } from "/page/figures.js";

export function open(place, address) {
  const id = address.rest[0];
  let drawn = "";
  let closed = false;

  const entry = (name, value) => (value ? [element("dt", { class: "soft" }, name), element("dd", {}, value)] : []);

  async function changed() {
    const row = known.rows.get(id);
    const state = row ? `${row.status} ${row.ended ? 0 : Math.floor(row.seconds / 2)}` : "unknown";
    if (state === drawn) return;
    drawn = state;
    const run = await ask(`/api/runs/${encodeURIComponent(id)}`);
    if (closed) return;
    const parameters = Object.entries(run.parameters).map(([name, value]) => `${name}=${value}`).join("  ");
    const git = run.environment?.git;
    const scrolled = place.querySelector("pre")?.scrollTop;
    place.replaceChildren(
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
      run.output ? element("pre", { tabindex: "0", "aria-label": "What it printed last" }, run.output) : element("p", { class: "soft" }, "It has printed nothing."),
      element("h2", {}, "Series"),
      element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Series" }, element("table", {},
        element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "series"), ["last", "mean", "unit", "points"].map((label) => element("th", { scope: "col", class: "number" }, label)))),
        element("tbody", {}, Object.entries(run.series).map(([name, each]) => element("tr", {},
          element("td", {}, name), element("td", { class: "number" }, each.last === null ? "" : number(each.last)),
          element("td", { class: "number" }, shown(each.unit, each.mean)), element("td", { class: "number" }, each.unit), element("td", { class: "number" }, each.points.toLocaleString("en"))))))));
    const output = place.querySelector("pre");
    if (output) output.scrollTop = scrolled ?? output.scrollHeight;
  }
  changed();
  return { changed, close: () => { closed = true; } };
}
