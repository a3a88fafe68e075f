// What selecting by scores has cost, what it saves, and after how many runs it has paid.

import { element } from "./elements.js";
import { number, seconds } from "./figures.js";

const MOST_REACHED = 4;

const middle = (values) => (values[Math.floor((values.length - 1) / 2)] + values[Math.ceil((values.length - 1) / 2)]) / 2;

function spread(values) {
  if (!values.length) return "–";
  return values.length > 1 ? `${number(middle(values), 4)} (${number(values[0], 4)} to ${number(values.at(-1), 4)})` : number(values[0], 4);
}

const paid = (after) => (after === null ? "never" : `${after.toLocaleString("en")} run${after > 1 ? "s" : ""}`);

const row = (label, ...cells) => element("tr", {}, element("th", { scope: "row" }, label), cells.map((text) => element("td", { class: "number" }, text)));

function table(each) {
  const label = `What the selection of ${each.group} costs and saves`;
  const head = ["", "scoring", `a run of ${each.against}`, `a run of ${each.group}`, "paid after"];
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, element("table", { class: "groups", "aria-label": label },
    element("thead", {}, element("tr", {}, head.map((text) => element(text ? "th" : "td", text ? { scope: "col", class: "number" } : {}, text)))),
    element("tbody", {},
      each.measures.map((one) => row(one.unit, number(one.scoring), number(one.full), number(one.selected), paid(one.after))),
      each.reached.slice(0, MOST_REACHED).map((one) => row(one.name, "", spread(one.full), spread(one.selected), "")))));
}

export function selecting(found) {
  if (!found.length) return null;
  return [
    element("h2", {}, "Was selecting worth it?"),
    ...found.map((each) => element("section", { "data-id": `selecting ${each.group}` },
      element("p", {}, element("strong", {}, each.group), ` selects by ${each.methods.join(", ")}`, each.against && [", against ", element("strong", {}, each.against)], "."),
      each.against ? table(each) : element("p", { class: "soft" }, `Scoring took ${seconds(each.scoring_s)}. Choose a group of runs on all samples, too, to see what it saves.`),
      each.against && each.watts && element("p", { class: "soft" }, `Wh are CPU-seconds at ${each.watts} W: no counter could be read.`))),
  ];
}
