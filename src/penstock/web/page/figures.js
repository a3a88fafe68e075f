// Numbers as people read them. What is not known is empty, never zero.

// Made once: toLocaleString with options makes one for each number, which takes 40 µs.
const english = new Intl.NumberFormat("en", { maximumSignificantDigits: 17 });

// What the server gives for numbers that JSON has none for, in the order in which they lie.
export const ODD = ["−∞", "∞", "NaN"];

export function number(value, digits = 3) {
  if (value === null || value === undefined) return "";
  if (ODD.includes(value)) return value;
  if (Number.isSafeInteger(value)) return english.format(value + 0); // -0 is 0
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(digits - 1);
  return english.format(Number(value.toPrecision(digits)));
}

export function bytes(value, digits = 3) {
  if (value === null || value === undefined) return "";
  if (ODD.includes(value)) return value;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (Math.abs(value) >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${value >= 1000 || !at ? Math.round(value) : Number(value.toPrecision(digits))} ${units[at]}`;
}

// With as many digits as the steps between ticks need.
export function ticksOf(unit, ticks) {
  const texts = [3, 4, 6, 9].map((digits) => ticks.map((tick) => shown(unit, tick, digits)));
  return texts.find((each) => new Set(each).size === each.length) || texts[3];
}

export function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value > 0 && value < 1) return `${number(value, 2)} s`;
  if (value < 60) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  const parts = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60), whole % 60];
  const shown = parts.map((part, at) => (at ? String(part).padStart(2, "0") : String(part)));
  return parts[0] ? shown.join(":") : `${parts[1]}:${shown[2]}`;
}

export const share = (value) => (value === null || value === undefined ? "" : `${Math.round(value * 100)}%`);

export function moment(time) {
  if (time === null || time === undefined) return "";
  const at = new Date(time * 1000);
  const two = (value) => String(value).padStart(2, "0");
  return `${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

// In the unit that the server gives a series.
export const shown = (unit, value, digits = 3) => (unit.startsWith("bytes") ? bytes : number)(value, digits);
