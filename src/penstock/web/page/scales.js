// Axes of numbers, linear or logarithmic, and of words at equal distances; and colours for a number.

import { ODD, ticksOf } from "./figures.js";

const LOG_FROM = 100; // times the least value: an axis that reaches so far is logarithmic
const WANTED_TICKS = 5;
const SHORT = 7; // letters of a number that stands as it was given
const NUMBERS = 0.85; // of an axis: the rest is for NaN and infinities, where there are any
const APART = 0.1; // of an axis: short numbers that all lie further from each other are its ticks
const COLOURS = [[84, 104, 212], [190, 82, 150], [240, 140, 46]];

const order = new Intl.Collator("en", { numeric: true }).compare;

// Ticks at equal distances, of bytes by powers of two.
export function steps(low, high, wanted = WANTED_TICKS, isBytes = false) {
  const least = (high - low) / wanted;
  const size = 10 ** Math.floor(Math.log10(least));
  const step = isBytes ? Math.max(1, 2 ** Math.ceil(Math.log2(least))) : size * [1, 2, 5, 10].find((times) => times * size >= least);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, at) => Number(((first + at) * step).toPrecision(12)));
}

export function powers(low, high, wanted = WANTED_TICKS) {
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  const every = Math.ceil((last - first + 1) / (wanted + 1));
  return Array.from({ length: Math.floor((last - first) / every) + 1 }, (_, at) => Number(`1e${first + at * every}`));
}

// An axis for some values: where each lies, from 0 to 1; and its ticks, each with its place and text. NaN and infinities
// lie above the numbers. One of positive numbers is "log" or "linear" if that is asked for.
export function axisOf(values, asked = "") {
  const odd = ODD.filter((word) => values.includes(word));
  const numbers = values.filter((value) => !odd.includes(value));
  if (!odd.length || !numbers.some((value) => typeof value === "number")) return axisOfOne(values, asked);
  const axis = axisOfOne(numbers, asked);
  const above = (word) => NUMBERS + ((1 - NUMBERS) * (odd.indexOf(word) + 1)) / odd.length;
  const at = (value) => (odd.includes(value) ? above(value) : NUMBERS * axis.at(value));
  return { ...axis, at, tint: (value) => (odd.includes(value) ? 1 : axis.at(value)), ticks: [...axis.ticks.map(([place, text]) => [NUMBERS * place, text]), ...odd.map((word) => [above(word), word])] };
}

function axisOfOne(values, asked) {
  const there = values.filter((value) => value !== undefined);
  if (!there.every((value) => typeof value === "number")) {
    const words = [...new Set(there.map(String))].sort(order);
    const at = (word) => (words.indexOf(String(word)) + 0.5) / words.length;
    return { at, tint: at, ticks: words.map((word) => [at(word), word]) };
  }
  const [low, high] = [Math.min(...there), Math.max(...there)];
  const log = low > 0 && asked !== "linear" && (asked === "log" || high >= LOG_FROM * low);
  const scaled = log ? Math.log10 : (value) => value;
  const at = (value) => (high > low ? (scaled(value) - scaled(low)) / (scaled(high) - scaled(low)) : 0.5);
  const own = [...new Set(there)].sort((a, b) => a - b);
  const apart = own.every((value, place) => String(value).length <= SHORT && (!place || at(value) - at(own[place - 1]) >= APART));
  const marks = apart || high === low ? own : log ? powers(low, high) : steps(low, high);
  const texts = marks.every((mark) => String(mark).length <= SHORT) ? marks.map(String) : ticksOf("", marks);
  return { at, tint: at, ticks: marks.map((mark, place) => [at(mark), texts[place]]), log, low, high };
}

// The colour of a place from 0 to 1, readable on light and on dark.
export function colourAt(place) {
  const part = place * (COLOURS.length - 1);
  const first = Math.min(Math.floor(part), COLOURS.length - 2);
  return `rgb(${COLOURS[first].map((from, at) => Math.round(from + (part - first) * (COLOURS[first + 1][at] - from))).join(",")})`;
}

export const RAMP = `linear-gradient(to right, ${COLOURS.map((each) => `rgb(${each.join(",")})`).join(",")})`;
