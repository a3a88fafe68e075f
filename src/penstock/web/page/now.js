// What goes on: runs and what each waits for, feeds and who holds whom back.

import { colour, known } from "/page/data.js";
import { dot, element } from "/page/elements.js";
import { bytes, number, seconds, share } from "/page/figures.js";

const term = (name, ...value) => [element("dt", { class: "soft" }, name), element("dd", {}, ...value)];

function run(row) {
  const glance = known.glances[row.id] || {};
  const logged = Object.entries(glance.logged || {}).slice(0, 6).map(([name, value]) => `${name} ${number(value)}`);
  return element("section", { class: "card" },
    element("h3", {}, dot(colour(row.id)), element("a", { href: `#/run/${row.id}` }, row.name), " ", element("small", { class: "soft" }, `${row.group}, ${row.mode}`)),
    glance.waiting !== null && glance.waiting !== undefined && [
      element("div", { class: "bar", role: "img", "aria-label": `waits for data ${share(glance.waiting)} of its time` },
        element("span", { colour: "var(--bad)", width: `${Math.min(100, 100 * glance.waiting)}%` })),
    ],
    element("dl", {},
      term("waits for data", share(glance.waiting) || element("span", { class: "soft" }, "not recorded")),
      term("runs for", seconds(row.seconds)),
      glance.cores !== undefined && glance.cores !== null ? term("cores", number(glance.cores)) : [],
      glance.rss_bytes ? term("memory", bytes(glance.rss_bytes)) : [],
      glance.read_bytes_per_s ? term("reads", `${bytes(glance.read_bytes_per_s)}/s`) : [],
      logged.length ? term("logs", logged.join(", ")) : []));
}

function feed(each) {
  if (!each.answers) return element("section", { class: "card" }, element("h3", {}, each.name), element("p", { class: "bad" }, `process ${each.pid} does not answer`));
  const held = each.held_back_by ? `process ${each.held_back_by} holds the others back for ${seconds(each.held_back_s)}` : "";
  const trainers = each.trainers.map((trainer) => element("tr", {},
    element("td", {}, trainer.pid), element("td", { class: "number" }, trainer.epoch), element("td", {}, trainer.state + (trainer.waits_for ? `: ${trainer.waits_for}` : "")),
    element("td", { class: "number" }, number(trainer.lag_samples)), element("td", { class: "number" }, seconds(trainer.held_back_s))));
  return element("section", { class: "card" },
    element("h3", {}, each.name, " ", element("small", { class: "soft" }, each.source)),
    element("dl", {},
      term("samples a second", number(each.samples_per_s)),
      term("waits for", each.waits_for || "nothing: it publishes"),
      term("window", `${bytes(each.used_bytes)} of ${bytes(each.window_bytes)}`),
      held ? term("held back", element("span", { class: "bad" }, held)) : []),
    element("div", { class: "scroll" }, element("table", { "aria-label": `Trainers of ${each.name}` },
      element("thead", {}, element("tr", {}, ["trainer", "epoch", "state", "lag", "held others back"].map((label, at) =>
        element("th", { scope: "col", class: at && at !== 2 && "number" }, label)))),
      element("tbody", {}, trainers))));
}

export function open(place) {
  function changed() {
    const running = [...known.rows.values()].filter((row) => row.status === "running" || row.status === "waiting");
    const ended = [...known.rows.values()].filter((row) => row.ended).slice(-5).reverse();
    place.replaceChildren(
      element("h2", {}, "Runs"),
      running.length ? element("div", { class: "cards" }, running.map(run))
        : element("p", { class: "empty" }, "Nothing runs. penstock run train.py starts a run; it appears here at once."),
      element("h2", {}, "Feeds"),
      known.feeds.length ? element("div", { class: "cards" }, known.feeds.map(feed))
        : element("p", { class: "empty" }, "No feed is open. A script that calls penstock.share opens one."),
      ...(ended.length ? [element("h2", {}, "Ended last"), element("ul", {}, ended.map((row) => element("li", {},
        dot(colour(row.id)), element("a", { href: `#/run/${row.id}` }, row.name), ` ${row.status.replaceAll("_", " ")}`,
        row.reason ? element("span", { class: "soft" }, ` — ${row.reason}`) : null)))] : []));
  }
  changed();
  return { changed };
}
