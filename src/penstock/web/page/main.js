// The page: chooses a view by its address, and passes on keys and what changes.

import { read, go } from "./address.js";
import { Away, begin, whenChanged } from "./data.js";

// Loaded when they are shown first, or once there is nothing else to do.
const VIEWS = {
  now: () => import("./now.js"),
  runs: () => import("./runs.js"),
  compare: () => import("./compare.js"),
  time: () => import("./time.js"),
  schedules: () => import("./schedules.js"),
  run: () => import("./run.js"),
  parameters: () => import("./parameters.js"),
};
const OF_CHOSEN = ["runs", "compare", "parameters"];
const KEYS = { 1: "now", 2: "runs", 3: "compare", 4: "time", 5: "schedules" };
const place = document.getElementById("view");
const link = document.getElementById("link");
const trouble = document.getElementById("trouble");
const keys = document.getElementById("keys");
let shown = null;
let view = "";
let lacks = false; // the view asked for something while the server was away

async function show() {
  const address = read();
  view = Object.hasOwn(VIEWS, address.view) ? address.view : "now";
  for (const each of document.querySelectorAll("nav a")) {
    if (each.hash === `#/${view}`) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  const opened = view;
  const { open } = await VIEWS[view]();
  if (view !== opened || read().view !== address.view || read().rest.join() !== address.rest.join()) return; // another was asked for meanwhile
  shown?.close?.();
  trouble.textContent = address.view && view !== address.view ? `There is no view ${JSON.stringify(address.view)}: here is what runs now.` : "";
  lacks = false;
  place.replaceChildren();
  shown = open(place, read());
}

// To another view; the runs that are chosen stay chosen.
function turn(to) {
  const chosen = OF_CHOSEN.includes(view) && OF_CHOSEN.includes(to) && to !== view ? read().query.getAll("run") : [];
  go(to, { run: chosen });
}

whenChanged(() => shown?.changed?.());
addEventListener("hashchange", show);
addEventListener("unhandledrejection", (event) => {
  if (event.reason instanceof Away) lacks = true;
  else trouble.textContent = event.reason?.message || String(event.reason);
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address says which view it is
  place.focus();
});
document.getElementById("help").addEventListener("click", () => keys.showModal());
document.querySelector("nav").addEventListener("click", (event) => {
  if (!event.target.hash || event.ctrlKey || event.shiftKey || event.metaKey) return;
  event.preventDefault();
  turn(event.target.hash.slice(2));
});
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || keys.open) return;
  if (event.target.matches("input:not([type=checkbox])")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (KEYS[event.key]) turn(KEYS[event.key]);
  else if (event.key === "?") keys.showModal();
  else if (!shown?.key?.(event)) return;
  event.preventDefault();
});

if (location.search) history.replaceState(null, "", "/" + location.hash); // the key does not stay in the address
begin((lost) => {
  const again = !lost && lacks && link.classList.contains("lost");
  link.textContent = lost || "live";
  link.classList.toggle("lost", Boolean(lost));
  if (again) show();
});
await show();
(window.requestIdleCallback || setTimeout)(() => { for (const load of Object.values(VIEWS)) load(); });
