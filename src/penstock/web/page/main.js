// The page: chooses a view by its address, and passes on keys and what changes.

import { read, go } from "/page/address.js";
import { begin, whenChanged } from "/page/data.js";
import { element } from "/page/elements.js";
import * as compare from "/page/compare.js";
import * as now from "/page/now.js";
import * as run from "/page/run.js";
import * as runs from "/page/runs.js";
import * as time from "/page/time.js";

const VIEWS = { now, runs, compare, time, run };
const KEYS = { 1: "now", 2: "runs", 3: "compare", 4: "time" };
const place = document.getElementById("view");
const link = document.getElementById("link");
const keys = document.getElementById("keys");
let shown = null;
let view = "";

function show() {
  const address = read();
  view = address.view in VIEWS ? address.view : "now";
  for (const each of document.querySelectorAll("nav a")) {
    if (each.hash === `#/${view}`) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  shown?.close?.();
  place.replaceChildren();
  shown = VIEWS[view].open(place, address);
}

// A view draws itself anew: the focus stays where it was, and a button that is held down stays there.
let pressed = false;
addEventListener("pointerdown", () => { pressed = true; });
for (const kind of ["pointerup", "pointercancel"]) addEventListener(kind, () => { pressed = false; });

function changed() {
  if (pressed) return;
  const focused = place.contains(document.activeElement) ? document.activeElement : null;
  const name = focused && ["href", "aria-label"].find((each) => focused.hasAttribute(each));
  shown?.changed?.();
  if (name && !focused.isConnected) place.querySelector(`${focused.localName}[${name}="${CSS.escape(focused.getAttribute(name))}"]`)?.focus();
}

whenChanged(changed);
addEventListener("hashchange", show);
addEventListener("unhandledrejection", (event) => {
  place.prepend(element("p", { class: "bad", role: "alert" }, event.reason?.message || String(event.reason)));
});
document.getElementById("help").addEventListener("click", () => keys.showModal());
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || keys.open) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (KEYS[event.key]) go(KEYS[event.key]);
  else if (event.key === "?") keys.showModal();
  else if (!shown?.key?.(event)) return;
  event.preventDefault();
});

if (location.search) history.replaceState(null, "", "/" + location.hash); // the key does not stay in the address
begin((trouble) => {
  link.textContent = trouble || "live";
  link.classList.toggle("lost", Boolean(trouble));
});
show();
