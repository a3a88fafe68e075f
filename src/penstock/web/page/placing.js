// Which charts come first, in which order, and which are large: it stands in the address.

import { change, read } from "./address.js";
import { button } from "./elements.js";

export const pinned = () => read().query.getAll("first");
export const enlarged = (name) => read().query.getAll("large").includes(name);

// Buttons that pin a chart, move it among those that are pinned, and enlarge it; then `placed` is called.
export function placing(name, placed) {
  const set = (key, names) => { change({ [key]: names }); show(); placed(); };
  const toggle = (key) => () => {
    const names = read().query.getAll(key);
    set(key, names.includes(name) ? names.filter((each) => each !== name) : [...names, name]);
  };
  const move = (by) => () => {
    const names = pinned();
    const to = names.indexOf(name) + by;
    if (to < 0 || to >= names.length) return;
    set("first", names.filter((each) => each !== name).toSpliced(to, 0, name));
  };
  const pin = button("", toggle("first"), { "aria-label": `Show ${name} first`, title: "Show it first" });
  const earlier = button("←", move(-1), { "aria-label": `Move ${name} earlier`, title: "Earlier" });
  const later = button("→", move(1), { "aria-label": `Move ${name} later`, title: "Later" });
  const size = button("⤢", toggle("large"), { "aria-label": `Enlarge ${name}`, title: "Larger" });

  function show() {
    const isPinned = pinned().includes(name);
    pin.textContent = isPinned ? "★" : "☆";
    pin.setAttribute("aria-pressed", String(isPinned));
    for (const each of [earlier, later]) each.hidden = !isPinned;
    size.setAttribute("aria-pressed", String(enlarged(name)));
  }
  show();
  return [pin, earlier, later, size];
}
