// Numbers as people read them. What is not known is empty, never zero.

export function number(value, digits = 3) {
  if (value === null || value === undefined) return "";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2);
  return Number(value.toPrecision(digits)).toLocaleString("en", { maximumSignificantDigits: digits });
}

export function bytes(value, digits = 3) {
  if (value === null || value === undefined) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (Math.abs(value) >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${value >= 1000 || !at ? Math.round(value) : Number(value.toPrecision(digits))} ${units[at]}`;
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
export const shown = (unit, value) => (unit.startsWith("bytes") ? bytes(value) : number(value));
