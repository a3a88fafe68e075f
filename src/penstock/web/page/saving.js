// Charts as files: what is seen as PNG, its points as CSV, as the server draws it SVG and PDF. Tables as CSV and LaTeX.

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

// What the server draws, with axes and fonts as papers want them: SVG, PDF.
export async function saveDrawn(name, kind, parameters) {
  const answer = await fetch(`/api/figure?${new URLSearchParams([...parameters, ["format", kind.toLowerCase()]])}`);
  if (!answer.ok) throw new Error((await answer.json()).error);
  saved(`${name}.${kind.toLowerCase()}`, await answer.blob());
}

const TABLES = { CSV: ["csv", tableAsCsv], LaTeX: ["tex", tableAsLatex] };

// Buttons that save a table, given as rows of texts, the first its heading.
export const tableSavers = (name, rows) => Object.entries(TABLES).map(([kind, [end, written]]) =>
  button(kind, () => saved(`${name}.${end}`, new Blob([written(rows())], { type: "text/plain" })), { "aria-label": `Save ${name} as ${kind}` }));

const LATEX = {
  "\\": "\\textbackslash{}", "^": "\\textasciicircum{}", "~": "\\textasciitilde{}", "<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}", "[": "{[}", "*": "{*}",
};

// Accents stand on their letters, what is never seen is left out, and two hyphens are no dash.
const latex = (text) => text.normalize().replace(/\p{Cf}/gu, "").replace(/\s+/g, " ").replace(/[$%&#_{}\\^~<>|[*]/g, (letter) => LATEX[letter] || `\\${letter}`).replace(/-(?=-)/g, "-{}");

function tableAsLatex([head, ...rows]) {
  const line = (cells) => `${cells.map(latex).join(" & ")} \\\\`;
  const table = ["\\begin{tabular}{" + "l".repeat(head.length) + "}", "\\toprule", line(head), "\\midrule", ...rows.map(line), "\\bottomrule", "\\end{tabular}", ""].join("\n");
  return /[^\0-\u017f\u2013-\u2026]/.test(table) ? `% With letters that pdflatex lacks: take LuaLaTeX or XeLaTeX, and a font that has them.\n${table}` : table;
}

const quoted = (text) => `"${String(text).replaceAll('"', '""')}"`;

function tableAsCsv(rows) {
  return rows.map((cells) => cells.map(quoted).join(",") + "\n").join("");
}
