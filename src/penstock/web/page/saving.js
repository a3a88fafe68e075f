// A chart as a file: what is seen as PNG and SVG, its points as CSV.

import { element } from "./elements.js";
import { ticksOf } from "./figures.js";

export const FAINT = 0.25; // how much is seen of a line behind its moving average
const ROW_PX = 16;

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function saved(name, blob) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// The pieces of a line between its gaps, each a list of places.
export function pieces(values) {
  const found = [[]];
  values.forEach((value, at) => {
    if (value === null) found.push([]);
    else if (value !== undefined) found[found.length - 1].push(at);
  });
  return found.filter((piece) => piece.length);
}

export function asCsv(chart, axis) {
  const quoted = (text) => `"${String(text).replaceAll('"', '""')}"`;
  const names = chart.lines.map(({ label }) => label);
  const smooth = chart.smooth ? names.map((name) => `${name}, smoothed`) : [];
  const bounds = names.flatMap((name, line) => (chart.bands[line] ? ["least", "greatest", "runs"].map((part) => `${name}, ${part}`) : []));
  const lines = [[axis === "time" ? "seconds" : axis, ...names, ...smooth, ...bounds].map(quoted).join(",")];
  chart.data[0].forEach((time, at) => lines.push([time, ...chart.data.slice(1).map((column) => column[at] ?? "")].join(",")));
  return lines.join("\n") + "\n";
}

// What is seen, on a ground of its own: the chart's name above, the names of its lines below.
export function asPng(chart) {
  const from = chart.plot.ctx.canvas;
  const scale = from.width / chart.plot.width;
  const height = from.height + (24 + ROW_PX * chart.lines.length) * scale;
  const canvas = Object.assign(element("canvas"), { width: from.width, height });
  const pen = canvas.getContext("2d");
  pen.fillStyle = css("--back");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(from, 0, 20 * scale);
  pen.scale(scale, scale);
  const write = (text, left, top, fill) => Object.assign(pen, { fillStyle: fill, font: "12px sans-serif" }).fillText(text, left, top);
  write(`${chart.text} ${chart.unit}`, 8, 16, css("--front"));
  chart.lines.forEach(({ label, colour }, line) => {
    const top = 20 + chart.plot.height + ROW_PX * (line + 1);
    write("●", 8, top - 4, colour);
    write(label, 24, top - 4, css("--front"));
  });
  return canvas;
}

export function asSvg(chart, placeOf) {
  const { x, y } = chart.plot.scales;
  const [least, most] = ticksOf(chart.unit, [y.min, y.max]);
  const [width, height, left, bottom] = [900, 400, 24 + 8 * Math.max(7, least.length, most.length), 40];
  const across = (time) => left + ((time - x.min) / (x.max - x.min || 1)) * (width - left - 10);
  const scaled = (value) => (y.distr === 3 ? Math.log10(Math.max(value, y.min)) : value);
  const up = (value) => 30 + (1 - (scaled(value) - scaled(y.min)) / (scaled(y.max) - scaled(y.min) || 1)) * (height - bottom - 40);
  const escaped = (text) => String(text).replace(/[<>&"]/g, (letter) => `&#${letter.charCodeAt(0)};`);
  const label = (text, at, where, anchor) => `<text x="${at}" y="${where}" text-anchor="${anchor}">${escaped(text)}</text>`;
  const path = (values, fill, opacity) => {
    const seen = chart.data[0].map((at, place) => (at < x.min || at > x.max ? undefined : values[place]));
    return pieces(seen).map((piece) => {
      const points = piece.map((at) => [across(chart.data[0][at]).toFixed(1), up(seen[at]).toFixed(1)]);
      return piece.length === 1 ? `<circle cx="${points[0][0]}" cy="${points[0][1]}" r="2.5" fill="${fill}" opacity="${opacity}"/>`
        : `<polyline fill="none" stroke="${fill}" opacity="${opacity}" points="${points.map((point) => point.join(",")).join(" ")}"/>`;
    }).join("");
  };
  const band = (line, fill) => {
    if (!chart.bands[line]) return "";
    const [least, greatest] = [0, 1].map((part) => chart.data[chart.bands[line] + part].flatMap((value, place) => {
      const at = chart.data[0][place];
      return value === null || value === undefined || at < x.min || at > x.max ? [] : [`${across(at).toFixed(1)},${up(value).toFixed(1)}`];
    }));
    return `<polygon fill="${fill}" opacity="0.18" points="${[...least, ...greatest.reverse()].join(" ")}"/>`;
  };
  const parts = chart.lines.map(({ label: name, colour }, line) => {
    const [raw, smooth] = [chart.data[line + 1], chart.smooth && chart.data[chart.lines.length + line + 1]];
    const row = height + ROW_PX * line;
    return `<g><title>${escaped(name)}</title>${band(line, colour)}${path(raw, colour, smooth ? FAINT : 1)}${smooth ? path(smooth, colour, 1) : ""}</g>` +
      `<circle cx="${left + 4}" cy="${row + 4}" r="4" fill="${colour}"/>` + label(name, left + 14, row + 8, "start");
  });
  const whole = height + ROW_PX * chart.lines.length;
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${whole}" font-family="sans-serif" font-size="12">` +
    `<rect width="${width}" height="${whole}" fill="#fff"/>` + label(`${chart.text} ${chart.unit}`, left, 18, "start") +
    label(least, left - 6, height - bottom, "end") + label(most, left - 6, 38, "end") +
    label(placeOf(x.min), left, height - 16, "start") + label(placeOf(x.max), width - 10, height - 16, "end") + parts.join("") + "</svg>";
}
