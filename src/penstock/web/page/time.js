// A bar a run: waiting for data, copying, computing, other; groups beside each other, and what to change first.

import { change, read } from "/page/address.js";
import { ask, colour, known } from "/page/data.js";
import { dot, element } from "/page/elements.js";
import { number, seconds, share } from "/page/figures.js";

const PARTS = [
  ["waiting", "waits for data", "#c74a52"],
  ["copying", "copies to the GPU", "#d9822b"],
  ["computing", "computes", "#3d9a50"],
  ["other", "other", "#8b949e"],
];

function bar(run) {
  const parts = PARTS.filter(([key]) => run.parts[key] !== null);
  const text = parts.map(([key, label]) => `${label} ${share(run.parts[key])}`).join(", ");
  return element("tr", {},
    element("td", { class: "name" }, dot(colour(run.id)), element("a", { href: `#/run/${run.id}` }, run.name)),
    element("td", { class: "number" }, seconds(run.seconds)),
    element("td", { class: "bars" }, parts.length
      ? element("div", { class: "bar", role: "img", "aria-label": text, title: text },
        parts.map(([key, , tint]) => element("span", { colour: tint, width: `${100 * run.parts[key]}%` })))
      : element("span", { class: "soft" }, "not recorded: penstock run --watch-dataloader")),
    element("td", { class: "soft wide" }, text));
}

function group(each, said) {
  const advice = said ? [] : [...new Set(Object.values(each.advice).map(([, text]) => text))];
  return element("section", {},
    element("h2", {}, `${each.name} (${each.mode})`),
    element("p", { class: "soft" }, [
      `all ${seconds(each.seconds)}`, `each ${seconds(each.each_s)}`,
      each.epoch_s !== null && `an epoch ${seconds(each.epoch_s)}`, each.samples_per_s !== null && `${number(each.samples_per_s)} samples a second`,
      each.cpu_s !== null && `${number(each.cpu_s)} s of CPU`,
    ].filter(Boolean).join(" · ")),
    element("div", { class: "scroll" }, element("table", { "aria-label": `Where the time of ${each.name} goes` }, element("tbody", {}, each.runs.map(bar)))),
    advice.map((text) => element("p", { class: "verdict" }, text[0].toUpperCase() + text.slice(1) + ".")));
}

export function open(place) {
  const choice = element("div", { class: "tools", role: "group", "aria-label": "Groups" });
  const body = element("div");
  const legend = element("div", { class: "legend" }, PARTS.map(([, label, tint]) => element("span", {}, dot(tint), label)));
  place.append(choice, legend, body);
  let drawn = "";

  const groups = () => [...new Map([...known.rows.values()].filter((row) => row.began !== null).map((row) => [row.group_id, row])).values()].reverse();

  async function changed() {
    const there = groups();
    const asked = read().query.getAll("group").filter((id) => there.some((row) => row.group_id === id));
    const chosen = asked.length ? asked : there.slice(0, 1).map((row) => row.group_id);
    const state = JSON.stringify([chosen, there.filter((row) => chosen.includes(row.group_id)).map((row) => [row.status, Math.round(row.seconds / 5)])]);
    if (state === drawn) return;
    drawn = state;
    choice.replaceChildren(...there.slice(0, 12).map((row) => element("button", {
      type: "button", "aria-pressed": String(chosen.includes(row.group_id)), onclick: () => {
        change({ group: chosen.includes(row.group_id) ? chosen.filter((id) => id !== row.group_id) : [...chosen, row.group_id] });
        drawn = "";
        changed();
      },
    }, `${row.group} (${row.mode})`)));
    if (!chosen.length) {
      body.replaceChildren(element("p", { class: "empty" }, "No runs yet. Start one with: penstock run train.py"));
      return;
    }
    const found = await ask("/api/groups", chosen.map((id) => ["id", id]));
    if (!body.isConnected) return;
    body.replaceChildren(...found.sentences.map((text) => element("p", { class: "verdict" }, text)), ...found.groups.map((each) => group(each, found.sentences.length)));
  }
  changed();
  return { changed };
}
