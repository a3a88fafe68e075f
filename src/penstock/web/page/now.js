// What goes on: GPUs and the runs on them, runs and what each waits for, feeds and who holds whom back.

import { left } from "./columns.js";
import { known } from "./data.js";
import { bar, element, notRecorded, runLink, term, update } from "./elements.js";
import { bytes, number, seconds, share } from "./figures.js";

function gauge(label, part, text) {
  return [
    element("dt", { class: "soft" }, label),
    element("dd", { class: "gauge" }, text, part === null ? null : bar(label, part, "var(--strong)")),
  ];
}

function unit(each, mig) {
  const there = Object.entries(each.runs).filter(([id]) => known.rows.has(id));
  const users = there.map(([id, used]) => element("li", { "data-id": id }, runLink(known.rows.get(id)), " ",
    element("span", { class: "soft" }, used === null ? "" : bytes(used))));
  if (each.others) users.push(element("li", { class: "soft" }, `${each.others} ${each.others === 1 ? "process" : "processes"} of no run`));
  return [
    mig && element("h4", {}, each.profile),
    element("dl", {},
      each.sm_active_percent === null ? [] : gauge("SM active", each.sm_active_percent / 100, share(each.sm_active_percent / 100)),
      gauge("memory", each.used_bytes === null ? null : each.used_bytes / each.memory_bytes, `${bytes(each.used_bytes) || "?"} of ${bytes(each.memory_bytes)}`)),
    users.length ? element("ul", { class: "users", "aria-label": "Runs on it" }, users) : null,
  ];
}

function gpu(card) {
  const { utilisation_percent: busy, power_w: power, temperature_c: heat } = card.readings;
  const held = ["power", "heat", "hardware"].filter((why) => card.readings[`throttled_${why}`]);
  const mig = card.units.some((each) => each.profile);
  return element("section", { class: "card gpu", "data-id": `gpu ${card.index}` },
    element("h3", {}, `GPU ${card.index} `, element("small", { class: "soft" }, card.name)),
    element("dl", {},
      busy === undefined ? [] : gauge("busy", busy / 100, share(busy / 100)),
      power === undefined ? [] : term("power", `${number(power)} W`),
      heat === undefined ? [] : term("temperature", `${number(heat)} °C`),
      held.length ? term("held down by", element("span", { class: "bad" }, held.join(", "))) : []),
    card.units.flatMap((each) => unit(each, mig)));
}

function run(row) {
  const glance = known.glances[row.id] || {};
  const yet = left(row);
  const logged = Object.entries(glance.logged || {}).slice(0, 6).map(([name, value]) => `${name} ${number(value)}`);
  return element("section", { class: "card", "data-id": row.id },
    element("h3", {}, runLink(row), " ", element("small", { class: "soft" }, `${row.group}, ${row.mode}`)),
    glance.waiting !== null && glance.waiting !== undefined && bar("waits for data", glance.waiting, "var(--bad)"),
    element("dl", {},
      row.began === null ? term("waits", "to be started") : [...term("waits for data", share(glance.waiting) || notRecorded()), ...term("runs for", seconds(row.seconds)), ...(yet ? term("left", `~${seconds(Math.round(yet.seconds))} (${yet.text})`) : [])],
      glance.cores !== undefined && glance.cores !== null ? term("cores", number(glance.cores)) : [],
      glance.memory_bytes ? term("memory", bytes(glance.memory_bytes)) : [],
      glance.read_bytes_per_s ? term("reads", `${bytes(glance.read_bytes_per_s)}/s`) : [],
      logged.length ? term("logs", logged.join(", ")) : []));
}

function feed(each) {
  if (!each.answers) return element("section", { class: "card", "data-id": `feed ${each.name}` }, element("h3", {}, each.name), element("p", { class: "bad" }, `process ${each.pid} does not answer`));
  const held = each.held_back_by ? `process ${each.held_back_by} holds the others back for ${seconds(each.held_back_s)}` : "";
  const trainers = each.trainers.map((trainer) => element("tr", {},
    element("td", {}, trainer.pid), element("td", { class: "number" }, trainer.epoch), element("td", {}, trainer.state + (trainer.waits_for ? `: ${trainer.waits_for}` : "") + (trainer.selected && each.samples_per_cycle ? `, takes ${share(trainer.selected / each.samples_per_cycle)}` : "")),
    element("td", { class: "number" }, number(trainer.lag_samples)), element("td", { class: "number" }, seconds(trainer.held_back_s))));
  return element("section", { class: "card", "data-id": `feed ${each.name}` },
    element("h3", {}, each.name, " ", element("small", { class: "soft" }, each.source)),
    element("dl", {},
      term("samples a second", number(each.samples_per_s)),
      term("waits for", each.waits_for || "nothing: it publishes"),
      term("window", `${bytes(each.used_bytes)} of ${bytes(each.window_bytes)}`),
      term("cores", number(each.usage.cores)),
      term("memory", bytes(each.usage.private_bytes + each.resident_bytes)),
      held ? term("held back", element("span", { class: "bad" }, held)) : [],
      each.cluster ? cluster(each.cluster) : []),
    element("div", { class: "scroll" }, element("table", { "aria-label": `Trainers of ${each.name}` },
      element("thead", {}, element("tr", {}, ["trainer", "epoch", "state", "lag", "held others back"].map((label, at) =>
        element("th", { scope: "col", class: at && at !== 2 && "number" }, label)))),
      element("tbody", {}, trainers))));
}

function cluster(report) {
  const { passed, nodes, why } = report.standing;
  const once = passed ? `; of all feeds of the name ${number(passed.made)} made, ${number(passed.again)} of them again` : "";
  return [
    term("from the cluster", `${number(report.blocks)} blocks, ${bytes(report.bytes)}; ${number(report.own)} loaded by the feeder${once}`),
    nodes.map((node) => term(node.node, node.aside ? element("span", { class: "bad" }, node.aside)
      : `${number(node.workers)} workers, ${number(node.blocks)} blocks${node.usual_s ? `, ${seconds(node.usual_s)} each` : ""}`)),
    nodes.length || !why ? [] : term("nodes", element("span", { class: "bad" }, why))];
}

const MOST_RUNS = 100;

function cards(rows) {
  const left = rows.length - MOST_RUNS;
  return [
    element("div", { class: "cards" }, rows.slice(0, MOST_RUNS).map(run)),
    left > 0 && element("p", {}, `… and ${number(left)} more, in the `, element("a", { href: "#/runs" }, "table of runs"), "."),
  ];
}

const endOf = (row) => (row.began ?? 0) + (row.seconds ?? 0);

export function open(place) {
  function changed() {
    const running = [...known.rows.values()].filter((row) => row.status === "running" || row.status === "waiting");
    const ended = [...known.rows.values()].filter((row) => row.ended).sort((a, b) => endOf(b) - endOf(a)).slice(0, 5);
    const { cards: gpus, note } = known.gpus;
    update(place, element("div", {},
      gpus.length ? [element("h2", {}, "GPUs"), element("div", { class: "cards" }, gpus.map(gpu))] : null,
      element("h2", {}, "Runs"),
      running.length ? cards(running)
        : element("p", { class: "empty" }, "Nothing runs. penstock run train.py starts a run; it appears here at once."),
      element("h2", {}, "Feeds"),
      known.feeds.length ? element("div", { class: "cards" }, known.feeds.map(feed))
        : element("p", { class: "empty" }, "No feed is open. penstock run --share opens one, and so does a script that calls penstock.share."),
      ended.length ? [element("h2", {}, "Ended last"), element("ul", {}, ended.map((row) => element("li", { "data-id": row.id },
        runLink(row), ` ${row.status.replaceAll("_", " ")}`,
        row.reason ? element("span", { class: "soft" }, ` — ${row.reason}`) : null)))] : null,
      note ? element("p", { class: "soft" }, gpus.length ? note : `GPUs are not shown: ${note}.`) : null));
  }
  changed();
  return { changed };
}
