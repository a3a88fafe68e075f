"""Pictures as matplotlib draws them, at the width of a column: only this module imports it."""
# matplotlib describes its types in part only.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import io
import math
import re
import textwrap
import threading
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from penstock.basics.results import short
from penstock.basics.terminal import listed, printable
from penstock.errors import BadSetting
from penstock.runs.compare import GroupFigures
from penstock.runs.store.columns import Floats
from penstock.web.charts import title_of
from penstock.web.lines import CLOCK, axis_of
from penstock.web.paper.panels import NOTE, NOTE_OF_STARTS, PARTS, Starts, names_of, panels_of, scale_of

_COLUMN_INCHES = {1: 3.4, 2: 7.0}
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's, which people tell apart who see few colours; the dashes tell lines apart without any."""
_DASHES = ("-", "--", ":", "-.")
_BAR, _INK, _FAINT = "#a6cee3", "#000000", 0.3
_STYLE = {
    "font.size": 8,
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
_DIGIT_INCHES, _LINE_INCHES, _SCALE_INCHES = 0.055, 0.1, 0.65
"""Width and height of the figures above bars, and width of a panel's scale."""
_LACKING = re.compile(r"Glyph (\d+) .*missing from")
_MOST_NAMES = 24
_drawing = threading.Lock()


@contextmanager
def _style() -> Generator[None]:
    drawing: Any = mpl.rc_context  # pyright: ignore[reportUnknownVariableType]
    with _drawing, drawing(_STYLE):  # it is one for all threads
        yield


class Picture(Figure):
    """A figure, which a notebook shows; its files are the same for the same data."""

    without: Sequence[str] = ()  # names of the lines that have no point in any of its charts
    crowded: str = ""  # sentence on what it has no room for; empty if there is nothing
    lacks: str = ""
    """Sentence on the characters that its font lacks, as its last file shows; empty if there are none."""

    @_style()
    def content(self, kind: str) -> bytes:
        """Return a file of a kind: "pdf", "svg" or "png"."""
        file = io.BytesIO()
        with warnings.catch_warnings(record=True) as told:
            warnings.filterwarnings("always", _LACKING.pattern)
            self.savefig(file, format=kind, metadata=_WITHOUT_DATE.get(kind))
        lacking: dict[str, None] = {}
        for each in told:
            if glyph := _LACKING.match(str(each.message)):
                lacking[chr(int(glyph[1]))] = None
            else:
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        self.lacks = f"boxes stand for what the font lacks: {listed([*lacking], 20)}" if lacking else ""
        return file.getvalue()

    def _repr_png_(self) -> bytes:
        content = self.content("png")
        if self.lacks:
            warnings.warn(self.lacks, stacklevel=2)
        return content


@_style()
def charts_picture(
    charts: Mapping[str, dict[str, Any]],  # what ``penstock.web.lines.chart`` returns, by the name of the series
    labels: Sequence[str],  # names of the lines
    over: str,  # what the x axes have, as ``penstock.web.lines.line_over`` takes it
    log: bool,  # whether the y axes are logarithmic
    columns: int,  # how many columns of a page the picture is as wide as: 1 or 2
    span: tuple[float, float] = (-math.inf, math.inf),  # first and last place of the x axes
) -> Picture:
    """Draw charts below and beside each other."""
    across = min(columns, len(charts))
    down = -(-len(charts) // across)
    shown = [
        which
        for which in range(len(labels))
        if any(len(chart["lines"][which][1]) or chart["odd"][which] for chart in charts.values())
    ]
    legend_high = 0.16 * len(shown) if len(labels) > 1 else 0.0
    figure = _picture(columns, (2.0 if across == columns else 2.8) * down + min(legend_high, 1.6))
    grid = figure.add_gridspec(down, across)
    lines: list[Any] = []
    for place, (name, drawn) in enumerate(charts.items()):
        axes: Any = figure.add_subplot(grid[divmod(place, across)])
        lines = _draw_lines(axes, name, drawn, over == CLOCK)
        axes.set_xlabel(axis_of(over) or ("time of day (UTC)" if over == CLOCK else "time (s)"))
        axes.set_xlim(*(_places([edge], over == CLOCK)[0] if math.isfinite(edge) else None for edge in span))
        axes.grid()
        if log:
            axes.set_yscale("log", nonpositive="mask")
            if axes.get_ylim()[1] < 100 * axes.get_ylim()[0]:
                axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_minor_formatter(NullFormatter())
        for axis in (axes.yaxis,) if over == CLOCK else (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(_number))
        axes.tick_params(axis="x", rotation=30 if over == CLOCK else 0)
    if len(labels) > 1 and shown:
        _legend(figure, [lines[which] for which in shown], [labels[which] for which in shown], columns)
    figure.without = [label for which, label in enumerate(labels) if which not in shown]
    return figure


def _places(at: Sequence[float] | Floats, is_clock: bool) -> Any:
    return np.array([datetime.fromtimestamp(each, UTC) for each in at]) if is_clock else np.asarray(at)


def _draw_lines(axes: Any, name: str, chart: dict[str, Any], is_clock: bool) -> list[Any]:
    """Draw the lines of a chart, the values faint behind their moving averages; return those in front."""
    times = np.asarray(chart["times"], float)
    lines: list[tuple[list[int] | None, list[float]]] = chart["lines"]
    odd: list[list[tuple[float, str]]] = chart["odd"]
    most = max((abs(value) for _, values in lines for value in values if math.isfinite(value)), default=0.0)
    title = title_of(name)
    factor, unit = scale_of(title.unit, most)
    axes.set_ylabel(textwrap.fill(f"{title.text} ({unit})" if unit else title.text, 26))
    drawn: list[Any] = []
    for number, (at, values) in enumerate([*lines, *chart["smooth"]]):
        which, is_behind = number % len(lines), bool(chart["smooth"]) and number < len(lines)
        finite = np.where(np.isfinite(values), values, np.nan) / factor
        x = _places(times if at is None else times[at], is_clock)
        style: dict[str, Any] = (
            {"lw": 0.5, "alpha": _FAINT} if is_behind else {"ls": _DASHES[which % 4], "lw": 1.1}
        )
        color, gid = _COLOURS[which % len(_COLOURS)], f"{'values' if is_behind else 'line'} {which}"
        drawn += axes.plot(x, finite, color=color, gid=gid, **style)
        around = np.isfinite(np.pad(finite, 1, constant_values=np.nan))
        if (alone := around[1:-1] & ~around[:-2] & ~around[2:]).any():
            axes.plot(x[alone], finite[alone], ".", ms=4, color=color, gid=f"point {which}")
        if not is_behind and (band := chart["bands"][which]):
            x, y = _outline(times, band, factor)
            axes.fill(_places(x, is_clock), y, color=color, alpha=0.15, lw=0, gid=f"band {which}")
        for where, word in odd[which] if number < len(lines) else []:
            text, height, side = ("∞", 1.0, "top") if word == "∞" else (word.replace("NaN", "×"), 0.0, "bottom")
            place = _places([where], is_clock)[0], height
            within: Any = {"transform": axes.get_xaxis_transform(), "color": color}
            axes.plot(*place, alpha=0, **within)  # the axis reaches so far: a text alone does not count for that
            axes.text(*place, text, ha="center", va=side, **within)
    return drawn[-len(lines) :]


def _outline(times: Floats, band: Sequence[Any], factor: float) -> tuple[Floats, Floats]:
    """Return the outline of what lies between the least and the greatest of several runs."""
    edges: list[tuple[Floats, Floats]] = []
    for at, values in band[:2]:
        y = np.asarray(values, float)
        there = np.isfinite(y)
        edges.append(((times if at is None else times[at])[there], y[there] / factor))
    (x, low), (end, high) = edges
    return np.concatenate([x, end[::-1]]), np.concatenate([low, high[::-1]])


@_style()
def groups_picture(groups: Sequence[GroupFigures], columns: int, starts: Starts | None = None) -> Picture:
    """Draw groups beside each other: in each panel a bar for each group, and a dot for each of its runs.

    ``starts`` has what each start took of groups that were started several times, by their ids.
    """
    panels, _ = panels_of(groups, starts or {})
    if not panels:
        raise BadSetting("there is nothing to draw: no group has an epoch, samples, CPU time, energy or memory")
    shown = [_cut(name, 28) for name in names_of(groups)]
    across = min(len(panels), 2 if columns == 1 else 3)
    down = -(-len(panels) // across)
    figure = _picture(columns, 2.1 * down + 0.2)
    grid = figure.add_gridspec(down, across)
    pitch = (_COLUMN_INCHES[columns] / across - _SCALE_INCHES) / (len(groups) + 0.2)  # of bars, in inches
    widest = max(len(line) for name in shown for line in textwrap.wrap(name, 12, break_long_words=False))
    each = max(1, math.ceil(0.08 / pitch))  # which names there is room for
    upright = len(shown) > 3 or widest > 12 or 1.2 * _DIGIT_INCHES * widest > pitch
    for place, panel in enumerate(panels):
        axes: Any = figure.add_subplot(grid[divmod(place, across)])
        above = max(0.0, *(_DIGIT_INCHES * len(short(value)) for value in panel.values if value is not None))
        lies = above <= pitch and (None not in panel.values or _DIGIT_INCHES * len("recorded") <= pitch)
        near: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "bottom", "fontsize": 6}
        near |= {"rotation": 0 if lies else 90, "visible": lies or pitch >= _LINE_INCHES}
        if not near["visible"]:
            figure.crowded = "there is no room for the figures above bars: draw fewer groups"
        for number, (value, dots) in enumerate(zip(panel.values, panel.dots, strict=True)):
            if value is None:
                axes.annotate("not\nrecorded" if lies else "not recorded", (number, 0), (0, 2), **near)
                continue
            error = {"yerr": panel.deviations[number] or None, "error_kw": {"lw": 0.8, "capsize": 2}}
            axes.bar(number, value, 0.62, color=_BAR, edgecolor=_INK, lw=0.6, **error)
            beside = np.linspace(-0.18, 0.18, len(dots)) if len(dots) > 1 else np.zeros(len(dots))
            axes.plot(number + beside, dots, "o", ms=2.6, color="white", markeredgecolor=_INK, markeredgewidth=0.6)
            axes.annotate(short(value), (number, max([value + panel.deviations[number], *dots])), (0, 3), **near)
        names = shown if upright else [textwrap.fill(name, 12) for name in shown]
        names = [name if number % each == 0 else "" for number, name in enumerate(names)]
        axes.set_xticks(range(len(groups)), names, rotation=90 if upright else 0)
        axes.tick_params(axis="x", length=0, labelbottom=place + across >= len(panels))
        axes.tick_params(axis="x", labelsize=min(8.0, 50 * each * pitch) if upright else 8.0)
        for label in axes.get_xticklabels():
            label.set_in_layout(place // across == down - 1)  # where nothing is below, no row moves for them
        axes.set_xlim(-0.6, len(groups) - 0.4)
        axes.set_ylim(0, (1.14 if lies else 1.1 + above / 1.4) * axes.get_ylim()[1] or 1.0)
        axes.yaxis.set_major_formatter(FuncFormatter(_number))
        axes.set_ylabel(f"{panel.title} ({panel.unit})")
        axes.grid(axis="y")
    note = NOTE + NOTE_OF_STARTS * bool(starts)
    figure.supxlabel(textwrap.fill(note, 60 * columns), fontsize=7)
    return figure


@_style()
def parts_picture(groups: Sequence[GroupFigures], columns: int) -> Picture:
    """Draw where the time of each run of some groups goes."""
    several = len(groups) > 1
    runs = [
        (f"{run.name}, {name}" if several else run.name, run)
        for group, name in zip(groups, names_of(groups), strict=True)
        for run in group.runs
    ]
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
    """Place names below all panels, as many beside each other as there is room for; of many, the first."""
    shown = [_cut(name) for name in names[:_MOST_NAMES]]
    if more := len(names) - len(shown):
        shown[-1] += f"; and {more:,} more"
    wide = 0.5 + 0.065 * max(map(len, shown))
    ncols = max(1, min(len(shown), int(_COLUMN_INCHES[columns] / wide)))
    figure.legend(keys[: len(shown)], shown, loc="outside lower center", ncols=ncols)


def _cut(name: str, longest: int = 40) -> str:
    name = printable(name)
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def _number(value: float, _: int) -> str:
    return f"{value:,.6g}"
