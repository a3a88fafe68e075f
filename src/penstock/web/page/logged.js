// What a run logged besides numbers, by step: images, histograms as they change, texts. What is not seen is not loaded.

import { button, element } from "./elements.js";
import { number } from "./figures.js";

const FILE = /^log\/([^/]+)\/(?:(.+)\.([0-9a-f]{8})\.(\d+)\.png|(histogram|text)\.[0-9a-f]{8}\.jsonl)$/;
const AT_ONCE = 30;
const [WIDE, HIGH] = [800, 256];

export const isLogged = (file) => FILE.test(file);

export const pathOf = (id, file) => `/api/runs/${encodeURIComponent(id)}/files/${file.split("/").map(encodeURIComponent).join("/")}`;

// What a run's files hold, by kind and name.
function grouped(id, files) {
  const groups = new Map();
  for (const [file, nbytes] of files) {
    const [, folder, step, writer, place, kind = "image"] = FILE.exec(file) || [];
    if (!folder) continue;
    let name = folder;
    try { name = decodeURIComponent(folder); } catch { /* none of Penstock's names: as it is */ }
    const group = groups.get(`${kind} ${folder}`) || { name, kind, entries: [], nbytes: 0 };
    groups.set(`${kind} ${folder}`, group);
    group.nbytes += nbytes;
    group.entries.push({ step: Number(step), writer, place: Number(place), path: pathOf(id, file) });
  }
  for (const { entries } of groups.values()) entries.sort((a, b) => a.step - b.step || a.place - b.place);
  return groups;
}

async function linesOf(entries) {
  const texts = await Promise.all(entries.map(({ path }) => fetch(path).then((answer) => (answer.ok ? answer.text() : ""))));
  const found = texts.flatMap((text) => text.split("\n")).flatMap((line) => {
    try { return [JSON.parse(line)]; } catch { return []; } // one that is being written, or never was to its end
  });
  return found.filter((each) => Number.isFinite(each?.step)).sort((a, b) => a.step - b.step || a.time - b.time);
}

// A slider over steps. It stays at the newest until somebody moves it.
function slider(name, choose) {
  let entries = [];
  const said = element("output", {});
  const range = element("input", { type: "range", min: 0, max: 0, "aria-label": `Step of ${name}`, oninput: () => tell() });
  function tell() {
    const entry = entries[range.value];
    const several = entries.some(({ writer }) => writer !== entry.writer);
    said.textContent = `step ${entry.step.toLocaleString("en")}${several ? ` · ${entry.writer}` : ""}`;
    range.setAttribute("aria-valuetext", said.textContent);
    choose(entry, said.textContent);
  }
  function set(next) {
    const before = entries[range.value];
    const follows = Number(range.value) >= entries.length - 1;
    const at = follows ? -1 : next.findIndex(({ step, writer, place }) => step === before.step && writer === before.writer && place === before.place);
    entries = next;
    range.max = next.length - 1;
    range.value = at < 0 ? next.length - 1 : at;
    if (next.length) tell();
  }
  return { set, label: element("label", { class: "slider" }, range, said) };
}

function image({ name }) {
  const picture = element("img", { loading: "lazy", decoding: "async" });
  const steps = slider(name, ({ path }, step) => {
    picture.alt = `${name}, ${step}`;
    if (picture.getAttribute("src") !== path) picture.src = path;
  });
  return { parts: [picture, steps.label], set: ({ entries }) => steps.set(entries) };
}

function text({ name }) {
  const shown = element("pre", { tabindex: "0", role: "group", "aria-label": name });
  const steps = slider(name, (entry) => { shown.textContent = entry.text; });
  return { parts: [shown, steps.label], seen: async ({ entries }) => steps.set(await linesOf(entries)) };
}

// A column for each step, as wide as it lasts; the darker, the more values are in a bin.
function histogram({ name }) {
  const canvas = Object.assign(element("canvas", { role: "img", "aria-label": name }), { width: WIDE, height: HIGH });
  const [top, bottom, first, last] = ["", "", "", ""].map(() => element("span"));
  const odd = element("p", { class: "bad" });
  async function seen({ entries }) {
    const lines = (await linesOf(entries)).filter(({ counts }) => Array.isArray(counts));
    const found = lines.filter(({ counts }) => counts.some(Boolean)); // not those that are NaN throughout
    const bad = ["nan", "infinite"].map((kind) => lines.reduce((sum, each) => sum + each[kind], 0));
    odd.textContent = bad.some(Boolean) ? `NaN: ${number(bad[0])}, infinite: ${number(bad[1])}` : "";
    if (!found.length) return;
    const [low, high] = [Math.min(...found.map((each) => each.low)), Math.max(...found.map((each) => each.high))];
    const [from, to] = [found[0].step, found.at(-1).step];
    const apart = (to - from) / Math.max(1, found.length - 1) || 1;
    const x = (step) => (WIDE * (step - from)) / (to - from + apart);
    const y = (value) => HIGH * (1 - (value - low) / (high - low || 1));
    const drawing = canvas.getContext("2d");
    drawing.clearRect(0, 0, WIDE, HIGH);
    drawing.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--strong");
    found.forEach((each, at) => {
      const width = Math.max(1, x(found[at + 1]?.step ?? to + apart) - x(each.step));
      const most = Math.max(...each.counts);
      const bin = (each.high - each.low) / each.counts.length;
      each.counts.forEach((count, place) => {
        const above = Math.min(y(each.low + bin * (place + 1)), HIGH - 2);
        drawing.globalAlpha = Math.sqrt(count / most);
        if (count) drawing.fillRect(x(each.step), above, width, Math.max(2, y(each.low + bin * place) - above));
      });
    });
    [top, bottom, first, last].forEach((each, at) => { each.textContent = at < 2 ? number([high, low][at]) : `step ${number([from, to][at - 2])}`; });
    canvas.setAttribute("aria-label", `${name}: values from ${number(low)} to ${number(high)}, steps ${number(from)} to ${number(to)}`);
  }
  return { parts: [element("div", { class: "heat" }, top, canvas, bottom, first, last), odd], seen };
}

export function logged(id) {
  const cards = new Map();
  const grid = element("div", { class: "cards" });
  const more = button("", () => { most += AT_ONCE; draw(); });
  const place = element("section", { "aria-label": "Logged", hidden: true }, element("h2", {}, "Images, histograms and texts"), grid, more);
  let most = AT_ONCE;
  let groups = [];
  const seen = new Set();
  const observer = new IntersectionObserver((changes) => {
    for (const { target, isIntersecting } of changes) seen[isIntersecting ? "add" : "delete"](target);
    draw();
  });

  function show(files) {
    groups = [...grouped(id, files)].sort((a, b) => a[1].name.localeCompare(b[1].name, "en", { numeric: true }));
    draw();
  }

  function draw() {
    for (const [key, group] of groups.slice(0, most)) {
      if (!cards.has(key)) {
        const made = { image, text, histogram }[group.kind](group);
        made.shown = element("div", { class: "card logged" }, element("h3", {}, group.name), made.parts);
        cards.set(key, made);
        grid.append(made.shown);
        observer.observe(made.shown);
      }
      const card = cards.get(key);
      card.set?.(group);
      if (card.seen && seen.has(card.shown) && card.loaded !== group.nbytes) {
        card.loaded = group.nbytes;
        card.seen(group).catch(() => { card.loaded = -1; }); // the next look asks again
      }
    }
    place.hidden = !groups.length;
    more.hidden = groups.length <= most;
    more.textContent = `Show more of ${groups.length.toLocaleString("en")}`;
  }

  return { place, show, close: () => observer.disconnect() };
}
