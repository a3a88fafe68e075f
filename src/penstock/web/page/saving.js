// Charts as files: what is seen as PNG, its points as CSV, as the server draws it SVG and PDF. Tables as CSV and LaTeX.

import { asLatex } from "./data.js";
import { BANDS, drawing } from "./drawing.js";
import { button, element } from "./elements.js";

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
  const names = chart.lines.map(({ label }) => label);
  const smooth = chart.smooth ? names.map((name) => `${name}, smoothed`) : [];
  const bounds = names.flatMap((name, line) => (chart.bands[line] ? [...BANDS.find(([band]) => band === drawing().band).slice(2), "runs"].map((part) => `${name}, ${part}`) : []));
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

// What the server draws, with axes and fonts as papers want them: SVG, PDF.
export async function saveDrawn(name, kind, parameters) {
  const answer = await fetch(`/api/figure?${new URLSearchParams([...parameters, ["format", kind.toLowerCase()]])}`);
  if (!answer.ok) throw new Error((await answer.json()).error);
  saved(`${name}.${kind.toLowerCase()}`, await answer.blob());
}

const TABLES = { CSV: ["csv", tableAsCsv], LaTeX: ["tex", asLatex] };

// Buttons that save a table, given as rows of texts, the first its heading; as CSV with numbers, if those are given.
export const tableSavers = (name, texts, numbers = texts) => Object.entries(TABLES).map(([kind, [end, written]]) =>
  button(kind, async () => saved(`${name}.${end}`, await written((kind === "CSV" ? numbers : texts)())), { "aria-label": `Save ${name} as ${kind}` }));

const quoted = (text) => `"${String(text).replaceAll('"', '""')}"`;

function tableAsCsv(rows) {
  return new Blob(rows.map((cells) => cells.map(quoted).join(",") + "\n"), { type: "text/plain" });
}
