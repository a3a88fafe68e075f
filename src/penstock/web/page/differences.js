// What differs between runs: parameters, commands, code, packages, variables and machines.

import { ask } from "./data.js";
import { dot, element } from "./elements.js";

const OWN = /^PENSTOCK_(RUN|PARAM)_/; // of each run, and told elsewhere
const MOMENT = new Set(["date", "load_before"]); // of a machine, when it was looked at

// All that describes a run, by what people call it.
function described(run) {
  const { git, code, packages, variables, machine, driver } = run.environment || {};
  const under = (title, values) => Object.entries(values || {}).filter(([name]) => !OWN.test(name)).map(([name, value]) => [`${title} ${name}`, String(value)]);
  const lasting = Object.fromEntries(Object.entries(machine || {}).filter(([name]) => !MOMENT.has(name)));
  const texts = Object.entries(code || {}).map(([name, { digest, text }]) => [`code ${name}`, text || `not kept, for its size; SHA-256 ${digest}`]);
  return new Map([
    ...under("parameter", run.parameters), ["command", run.command.join(" ")], ["directory", run.directory], ["commit", git?.commit?.slice(0, 12) ?? ""],
    ["changes not committed", git?.diff ?? ""], ...texts, ...under("package", packages), ...under("variable", variables), ...under("machine", lasting), ["driver", driver ?? ""],
  ]);
}

// Of texts of many lines, those lines that not all of them have.
function ownLines(texts) {
  const lines = texts.map((text) => text.split("\n"));
  const common = lines.reduce((left, some) => new Set(some.filter((line) => left.has(line))), new Set(lines[0]));
  return lines.map((some) => some.filter((line) => !common.has(line)).join("\n"));
}

function cells(texts) {
  if (!texts.some((text) => text.includes("\n"))) return texts.map((text) => element("td", {}, text || element("span", { class: "soft" }, "–")));
  return ownLines(texts).map((text, at) => element("td", {}, text ? element("pre", { tabindex: "0", role: "group", "aria-label": "Lines that differ" }, text)
    : element("span", { class: "soft" }, texts[at] ? "no line of its own" : "–")));
}

// A table of what differs between runs, each with its label and colour; asks for all that is known of them.
export async function differences(ids, label, colourOf) {
  const runs = await Promise.all(ids.map((id) => ask(`/api/runs/${encodeURIComponent(id)}`)));
  const known = runs.map(described);
  const names = [...new Set(known.flatMap((each) => [...each.keys()]))];
  const rows = names.map((name) => [name, known.map((each) => each.get(name) ?? "")]).filter(([, texts]) => new Set(texts).size > 1);
  const unknown = runs.filter(({ environment }) => !environment?.git && !Object.keys(environment?.code || {}).length);
  const said = unknown.length ? element("p", { class: "soft" }, `Of the code of ${unknown.length === runs.length ? "these runs" : unknown.map(({ id }) => label(id)).join(", ")} nothing is known.`) : "";
  if (!rows.length) return element("div", {}, element("p", { class: "soft" }, `Nothing that is known of them: parameters, command, ${unknown.length ? "" : "code, "}packages, variables and machine are the same.`), said);
  return element("div", {}, said, element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "What differs" }, element("table", { "aria-label": "What differs" },
    element("thead", {}, element("tr", {}, element("td"), ids.map((id) => element("th", { scope: "col" }, dot(colourOf(id)), label(id))))),
    element("tbody", {}, rows.map(([name, texts]) => element("tr", {}, element("th", { scope: "row" }, name), cells(texts)))))));
}
