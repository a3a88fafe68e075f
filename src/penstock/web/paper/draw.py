"""Pictures as matplotlib draws them, at the width of a column: only this module imports it."""
# matplotlib describes its types in part only.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import io
import math
import textwrap
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from penstock.bench.experiment import short
from penstock.runs.figures import RunFigures
from penstock.web.paper.panels import PARTS, Bars, scale_of

_COLUMN_INCHES = {1: 3.4, 2: 7.0}
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's, which people tell apart who see few colours; the dashes tell lines apart without any."""
_DASHES = ("-", "--", ":", "-.")
_BAR, _INK, _FAINT = "#a6cee3", "#000000", 0.3
_STYLE = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "text.parse_math": False,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
    "svg.hashsalt": "penstock",
    "savefig.dpi": 300,
}
_WITHOUT_DATE: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
_drawing = threading.Lock()


@contextmanager
def _style() -> Generator[None]:
    drawing: Any = mpl.rc_context  # pyright: ignore[reportUnknownVariableType]
    with _drawing, drawing(_STYLE):  # it is one for all threads
        yield


class Picture(Figure):
    """A figure, which a notebook shows; its files are the same for the same data."""

    @_style()
    def content(self, kind: str) -> bytes:
        """Return a file of a kind: "pdf", "svg" or "png"."""
        file = io.BytesIO()
        self.savefig(file, format=kind, metadata=_WITHOUT_DATE.get(kind))
        return file.getvalue()

    def _repr_png_(self) -> bytes:
        return self.content("png")


class Chart(NamedTuple):
    """A series of several runs.

    Attributes:
        labels: Names of its lines.
        drawn: What ``penstock.web.lines.chart`` returns.
        axis: Name of the x axis.
        span: First and last place of the x axis.
        clock: Whether the x axis is the time of day.
        log: Whether the y axis is logarithmic.
    """

    title: str
    unit: str
    labels: Sequence[str]
    drawn: dict[str, Any]
    axis: str
    span: tuple[float, float]
    clock: bool
    log: bool


@_style()
def charts_picture(charts: Sequence[Chart], columns: int) -> Picture:
    """Draw charts below and beside each other, of the width of one or two columns of a page."""
    across = min(columns, len(charts))
    down = -(-len(charts) // across)
    names = list(dict.fromkeys(label for chart in charts for label in chart.labels))
    legend_high = 0.16 * len(names) if len(names) > 1 else 0.0
    figure = _picture(columns, (2.0 if across == columns else 2.8) * down + min(legend_high, 1.6))
    grid = figure.add_gridspec(down, across)
    for place, chart in enumerate(charts):
        _draw_chart(figure.add_subplot(grid[divmod(place, across)]), chart, names)
    if len(names) > 1:
        shown: dict[str, Any] = {}
        for axes in figure.axes:
            for line, name in zip(*axes.get_legend_handles_labels(), strict=True):
                shown.setdefault(name, line)
        _legend(figure, list(shown.values()), [*shown], columns)
    return figure


def _draw_chart(axes: Any, chart: Chart, names: Sequence[str]) -> None:
    def places(at: Any) -> Any:
        return np.array([datetime.fromtimestamp(each, UTC) for each in at]) if chart.clock else np.asarray(at)

    times = np.asarray(chart.drawn["times"], float)
    lines: list[tuple[list[int] | None, list[float]]] = chart.drawn["lines"]
    smooth: list[tuple[list[int] | None, list[float]]] = chart.drawn["smooth"]
    odd: list[list[tuple[float, str]]] = chart.drawn["odd"]
    most = max((abs(value) for _, values in lines for value in values if math.isfinite(value)), default=0.0)
    factor, unit = scale_of(chart.unit, most)
    for number, (at, values) in enumerate([*lines, *smooth]):
        which = number % len(lines)
        kind = names.index(chart.labels[which])
        behind = bool(smooth) and number < len(lines)
        known = np.asarray(values, float) / factor
        x = places(times if at is None else times[at])
        alone = (
            np.isfinite(known) & ~np.isfinite(np.r_[np.nan, known[:-1]]) & ~np.isfinite(np.r_[known[1:], np.nan])
        )
        [line] = axes.plot(
            x,
            np.where(np.isfinite(known), known, np.nan),
            color=_COLOURS[kind % len(_COLOURS)],
            ls="-" if behind else _DASHES[kind // len(_COLOURS) % 4 if len(names) > 28 else kind % 4],
            lw=0.5 if behind else 1.1,
            alpha=_FAINT if behind else 1.0,
            label="_" if behind else chart.labels[which],
            gid=f"{'values' if behind else 'line'} {which}",
        )
        if alone.any():
            axes.plot(x[alone], known[alone], ".", ms=4, color=line.get_color(), gid=f"point {which}")
        for where, word in odd[which] if number < len(lines) else []:
            height, mark = (1.0, "top") if word == "∞" else (0.0, "bottom")
            over = axes.get_xaxis_transform()
            text = "×" if word == "NaN" else word
            axes.text(*places([where]), height, text, transform=over, ha="center", va=mark, color=line.get_color())
    if chart.log:
        axes.set_yscale("log", nonpositive="mask")
        low, high = axes.get_ylim()
        if high < 100 * low:
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(_number))
    axes.set_xlim(*(places([edge])[0] if math.isfinite(edge) else None for edge in chart.span))
    if chart.clock:
        for label in axes.get_xticklabels():
            label.set(rotation=30, ha="right")
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(_number))
    axes.set_xlabel(chart.axis)
    axes.set_ylabel(textwrap.fill(f"{chart.title} ({unit})" if unit else chart.title, 26))
    axes.grid()


@_style()
def bars_picture(panels: Sequence[Bars], names: Sequence[str], note: str, columns: int) -> Picture:
    """Draw panels, each with a bar for each group; a dot is a run of it."""
    across = min(len(panels), 2 if columns == 1 else 3)
    down = -(-len(panels) // across)
    figure = _picture(columns, 2.1 * down + 0.2)
    grid = figure.add_gridspec(down, across)
    shown = [_cut(name, 28) for name in names]
    slanted = len(names) > 3 or any(len(word) > 12 for name in shown for word in name.split())
    for place, panel in enumerate(panels):
        axes: Any = figure.add_subplot(grid[divmod(place, across)])
        for number, (value, dots) in enumerate(zip(panel.values, panel.dots, strict=True)):
            if value is None:
                axes.annotate(
                    "not\nrecorded", (number, 0), (0, 2), textcoords="offset points", ha="center", fontsize=6
                )
                continue
            axes.bar(number, value, 0.62, color=_BAR, edgecolor=_INK, lw=0.6)
            beside = np.linspace(-0.18, 0.18, len(dots)) if len(dots) > 1 else np.zeros(len(dots))
            axes.plot(number + beside, dots, "o", ms=2.6, color="white", markeredgecolor=_INK, markeredgewidth=0.6)
            top = max([value, *dots])
            axes.annotate(short(value), (number, top), (0, 3), textcoords="offset points", ha="center", fontsize=6)
        axes.set_xticks(range(len(names)))
        axes.tick_params(axis="x", length=0)
        if place + across < len(panels):
            axes.tick_params(labelbottom=False)  # they stand below the panel below
        elif slanted:
            axes.set_xticklabels(shown, rotation=90)
        else:
            axes.set_xticklabels([textwrap.fill(name, 12) for name in shown])
        if place // across < down - 1:
            for label in axes.get_xticklabels():
                label.set_in_layout(False)  # what is below is empty: no row moves for them
        axes.set_xlim(-0.6, len(names) - 0.4)
        axes.set_ylim(0, 1.14 * axes.get_ylim()[1] or 1.0)
        axes.yaxis.set_major_formatter(FuncFormatter(_number))
        axes.set_ylabel(f"{panel.title} ({panel.unit})")
        axes.grid(axis="y")
    figure.supxlabel(textwrap.fill(note, 60 * columns), fontsize=7)
    return figure


@_style()
def parts_picture(runs: Sequence[tuple[str, RunFigures]], columns: int) -> Picture:
    """Draw where the time of each run goes; runs come with their labels."""
    figure = _picture(columns, 0.19 * len(runs) + 0.9)
    axes: Any = figure.add_subplot()
    for row, (_, run) in enumerate(runs):
        left = 0.0
        for name, _, colour, hatch in PARTS:
            part = 100 * (getattr(run.parts, name) or 0.0)
            axes.barh(row, part, 0.76, left, color=colour, hatch=hatch, edgecolor=_INK, lw=0.4)
            left += part
        if run.parts.waiting is None:
            axes.text(1, row, "not recorded", va="center", fontsize=7)
    axes.set_yticks(range(len(runs)), [_cut(label) for label, _ in runs])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.xaxis.set_major_formatter(PercentFormatter(decimals=0))
    axes.set_xlabel("part of the run's time")
    keys = [Patch(facecolor=colour, hatch=hatch, edgecolor=_INK, lw=0.4) for _, _, colour, hatch in PARTS]
    _legend(figure, keys, [text for _, text, _, _ in PARTS], columns)
    return figure


def _picture(columns: int, high: float) -> Any:
    figure = Picture(figsize=(_COLUMN_INCHES[columns], high), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _legend(figure: Any, keys: Sequence[Any], names: Sequence[str], columns: int) -> None:
    """Place names below all panels, as many beside each other as there is room for."""
    shown = [_cut(name) for name in names]
    wide = 0.5 + 0.065 * max(map(len, shown))
    ncols = max(1, min(len(shown), int(_COLUMN_INCHES[columns] / wide)))
    figure.legend(keys, shown, loc="outside lower center", ncols=ncols)


def _cut(name: str, longest: int = 40) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def _number(value: float, _: int) -> str:
    return f"{value:,.6g}"
