// How charts are drawn: over which axis, smoothed, on a logarithmic scale. It stands in the address.

import { change, read } from "./address.js";
import { button, element, fill } from "./elements.js";

const SMOOTHEST = 0.999;
const OFFERED = ["step", "epoch"]; // what a script may have logged beside its numbers

export const drawing = () => {
  const { query } = read();
  const smoothing = Number(query.get("smooth")) || 0;
  const asked = query.get("over") || "";
  const over = !asked || asked === "clock" || asked.startsWith("series:") ? asked : `series:${asked}`;
  const band = BANDS.some(([each]) => each === query.get("band")) ? query.get("band") : BANDS[0][0];
  return { over, band, log: query.get("log") === "1", smoothing: Math.min(SMOOTHEST, Math.max(0, smoothing)) };
};

// What a band around the mean of several runs reaches, and what its bounds are called.
export const BANDS = [["range", "from the least to the greatest", "least", "greatest"], ["deviation", "standard deviation", "mean - deviation", "mean + deviation"], ["error", "error of the mean", "mean - error", "mean + error"]];

// The part of the axis that is shown: [begin, end], or null for all.
export const range = () => read().query.get("range")?.split(",").map(Number) ?? null;
export const setRange = (next) => change({ range: next ? next.map((each) => Number(each.toPrecision(14))).join(",") : "" });

// The controls; `changed` is called once something is set. `offer` takes the names of the series that there are.
export function controls(changed) {
  const set = (changes) => { change(changes); changed(); };
  const over = element("select", { "aria-label": "Horizontal axis", onchange: () => set({ over: over.value, range: "" }) });
  const log = button("Log scale", () => {
    set({ log: drawing().log ? "" : "1" });
    log.setAttribute("aria-pressed", String(drawing().log));
  });
  const smooth = element("input", {
    type: "range", min: 0, max: SMOOTHEST, step: 0.001, "aria-label": "Smoothing",
    onchange: () => { set({ smooth: Number(smooth.value) || "" }); say(); },
    oninput: () => say(),
  });
  const said = element("output", {});
  const say = () => { said.textContent = Number(smooth.value) ? Number(smooth.value).toFixed(smooth.value > 0.99 ? 3 : 2) : "off"; };

  function offer(names) {
    const axes = OFFERED.filter((name) => names.includes(name) || name === "step").map((name) => [`series:${name}`, name]);
    const now = drawing().over;
    if (now && now !== "clock" && !axes.some(([value]) => value === now)) axes.push([now, now.replace(/^series:/, "")]);
    fill(over, [["", "time since its beginning"], ["clock", "time of day"], ...axes], now);
  }

  offer([]);
  smooth.value = drawing().smoothing;
  say();
  log.setAttribute("aria-pressed", String(drawing().log));
  return { offer, elements: [element("label", {}, "over ", over), log, element("label", { class: "slider" }, "smoothing ", smooth, said)] };
}
