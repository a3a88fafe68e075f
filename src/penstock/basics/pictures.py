"""Pictures of what was measured, in one style: bars, and series of points with labels that never overlap."""
# matplotlib describes its types in part only.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import Bbox

from penstock.basics.lanes import Bar, rows_of

INK, FAINT, GRID = "#1f2933", "#616e7c", "#e4e7eb"
BEFORE, AFTER = "#9aa5b1", "#0b7a75"
_DPI = 120
_MARGIN = 0.35  # inches
_TITLE, _ABOUT, _NAMES = 16, 10, 10  # points
_HIGH = 11  # points from a label to the next


class Mark(NamedTuple):
    """A point, its label, and the least and most of its height."""

    x: float
    y: float
    label: str = ""
    hollow: bool = False
    spread: tuple[float, float] | None = None


class Curve(NamedTuple):
    """Points of one colour, joined by a line; a faint line joins a first point with its projection."""

    name: str
    color: str
    points: Sequence[Mark]
    marker: str = "o"
    line: str = "-"
    faint: bool = False


class Panel(NamedTuple):
    """Curve on axes that begin at 0, or on logarithmic ones."""

    title: str
    series: Sequence[Curve]
    x_label: str
    y_label: str = ""
    log: bool = False
    counts: Sequence[int] = ()
    """Marks of an axis that counts, such as trainers; on a logarithmic one, the other axis begins at 0."""


class Bars(NamedTuple):
    """Groups of bars side by side."""

    title: str
    names: Sequence[str]
    values: Sequence[Sequence[float]]  # by arm, a value for each name
    shown: str = ",.0f"  # format of a value
    gain: tuple[str, bool] | None = None
    """What the second arm gains over the first, in words; and whether it is better."""


def series_picture(title: str, about: str, panels: Sequence[Panel], *, columns: int, note: str = "") -> Any:
    """Draw panels side by side under one legend; series whose points are named are not in it.

    Args:
        note: What a hollow point is.
    """
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    named = {each.name: each for panel in panels for each in panel.series if not each.faint}
    handles = [
        Line2D([], [], color=each.color, marker=each.marker, ls=each.line, label=name)
        for name, each in named.items()
    ]
    if note:
        handles.append(Line2D([], [], ls="", marker="s", color=FAINT, markerfacecolor="white", label=note))
    figure = _canvas(max(8.5, 4.6 * columns), 3.9 * rows, title, about, handles)
    grid = figure.add_gridspec(rows, columns)
    apart = [_draw(figure.add_subplot(grid[divmod(place, columns)]), panel) for place, panel in enumerate(panels)]
    figure.draw_without_rendering()
    for panel, (labels, points) in zip(panels, apart, strict=True):
        _spread_labels(labels, points, rows=1 if panel.log else 10)
    return figure


def bars_picture(title: str, about: str, arms: Sequence[str], first: Bars, others: Sequence[Bars]) -> Any:
    """Draw a wide panel of bars, and narrow ones below it."""
    colors = (BEFORE, AFTER)
    handles = [Line2D([], [], lw=8, color=color, label=arm) for arm, color in zip(arms, colors, strict=True)]
    figure = _canvas(12, 5.6, title, about, handles)
    grid = figure.add_gridspec(2, len(others), height_ratios=(1.25, 1))
    for place, bars in ((grid[0, :], first), *((grid[1, i], each) for i, each in enumerate(others))):
        axes = figure.add_subplot(place)
        width = 0.76 / len(arms)
        for i, (values, color) in enumerate(zip(bars.values, colors, strict=True)):
            places = [number + (i + 0.5) * width - 0.38 for number in range(len(values))]
            drawn = axes.bar(places, values, width - 0.02, color=color)
            axes.bar_label(
                drawn, [format(value, bars.shown) for value in values], padding=2, fontsize=9, color=INK
            )
        axes.set_xticks(range(len(bars.names)), bars.names, fontsize=9, color=FAINT)
        axes.set_ylim(0, 1.15 * max(max(values) for values in bars.values))
        axes.set_yticks([])
        if bars.gain:
            what, better = bars.gain
            axes.set_title(what, loc="right", fontsize=16, fontweight="bold", color=AFTER if better else FAINT)
        _plain(axes, bars.title, "bottom")
    return figure


def _canvas(width: float, below: float, title: str, about: str, handles: Sequence[Any]) -> Any:
    """Make a figure with panels, ``below`` inches high, under a title and what it shows."""

    def wrapped(text: str, size: int, letter: float) -> str:
        wide = int(72 * (width - 2 * _MARGIN) / (letter * size))
        return "\n".join(textwrap.fill(line, wide) for line in text.replace("$", r"\$").split("\n"))

    texts = [
        (wrapped(title, _TITLE, 0.65), _TITLE, INK, "bold"),
        (wrapped(about, _ABOUT, 0.55), _ABOUT, FAINT, "normal"),
    ]
    names_wide = sum(0.09 * len(each.get_label()) + 0.7 for each in handles)
    ncols = max(1, min(len(handles), int(len(handles) * (width - 2 * _MARGIN) / max(names_wide, 1))))
    heights = [1.4 * size / 72 * (text.count("\n") + 1) for text, size, _, _ in texts]
    legend = 1.7 * _NAMES / 72 * -(-len(handles) // ncols) if handles else 0.0
    head = _MARGIN + sum(heights) + legend + 0.1
    height = head + below
    figure: Any = Figure(figsize=(width, height), dpi=_DPI, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    left, down = _MARGIN / width, _MARGIN
    for (text, size, color, weight), high in zip(texts, heights, strict=True):
        figure.text(left, 1 - down / height, text, fontsize=size, color=color, fontweight=weight, va="top")
        down += high
    if handles:
        figure.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(left * 0.8, 1 - down / height),
            ncols=ncols,
            frameon=False,
            fontsize=_NAMES,
        ).set_in_layout(False)
    rect = (left / 2, 0.01, 1 - left, 0.98 * below / height)
    figure.get_layout_engine().set(rect=rect, w_pad=_MARGIN / 4, wspace=0.06, hspace=0.08)
    return figure


def _draw(axes: Any, panel: Panel) -> tuple[list[Any], list[tuple[float, float]]]:
    """Draw a panel; return its labels, and the places of its points in pixels."""
    labels = list[Any]()
    for name, color, points, marker, line, faint in panel.series:
        xs, ys = [point.x for point in points], [point.y for point in points]
        axes.plot(
            xs, ys, ls=line, marker=marker, color=color, alpha=0.35 if faint else 1, label=name, ms=6, lw=1.6
        )
        for face, some in (("white", [p for p in points if p.hollow]), (color, points[:1] if faint else [])):
            if some:
                where = [point.x for point in some], [point.y for point in some]
                axes.plot(*where, ls="", marker=marker, ms=6.5, color=color, markerfacecolor=face)
        for x, y, label, _, spread in points:
            if spread:
                axes.errorbar([x], [y], [[y - spread[0]], [spread[1] - y]], color=color, lw=1, capsize=3)
            if label:
                own = INK if faint else color
                at: Any = {"xytext": (0, 0), "textcoords": "offset points", "va": "center", "fontsize": 8.5}
                labels.append(axes.annotate(label, (x, y), color=own, **at))
    if panel.log:
        axes.set_xscale("log")
        axes.margins(0.14)
        if not panel.counts:
            axes.set_yscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(0, (1.05 if panel.counts else 1.2) * axes.get_xlim()[1])  # labels stand beside their points
    if panel.counts:
        axes.set_xticks(panel.counts)
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    if panel.log or not panel.counts:
        axes.xaxis.set_major_formatter(FuncFormatter(_thousands))
    axes.yaxis.set_major_formatter(FuncFormatter(_thousands))
    axes.set_xlabel(panel.x_label, color=FAINT)
    axes.set_ylabel(panel.y_label, color=FAINT)
    axes.grid(color=GRID, lw=0.7)
    axes.set_axisbelow(True)
    _plain(axes, panel.title, "")
    return labels, [(point.x, point.y) for each in panel.series for point in each.points]


def _thousands(value: float, _: int) -> str:
    return f"{value:,.10g}"


def _plain(axes: Any, title: str, line: str) -> None:
    """Set the title, and leave of the frame only the line that bars stand on."""
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK, pad=10)
    for side in axes.spines:
        axes.spines[side].set_visible(side == line)
    axes.tick_params(which="both", length=0, colors=FAINT)


def _spread_labels(labels: Sequence[Any], points: Sequence[tuple[float, float]], rows: int) -> None:
    """Move each label beside its point, at most ``rows`` up or down, until it covers nothing; else hide it."""
    if not labels:
        return
    axes = labels[0].axes
    taken = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for x, y in axes.transData.transform(points)]
    ups = sorted((half / 2 for half in range(-2 * rows, 2 * rows + 1)), key=abs)
    for label in labels:
        for up in ups:
            for right in (True, False):
                label.set_ha("left" if right else "right")
                label.set_position((6 if right else -6, _HIGH * up))
                box = label.get_window_extent()
                if not any(box.overlaps(other) for other in taken):
                    break
            else:
                continue
            taken.append(box)
            break
        else:
            label.set_visible(False)


_GROUPS = (AFTER, "#c46a2b", "#5b6abf", "#8a6d3b", "#a8447d", "#4f8a3c", "#3f7fa6", BEFORE)


def gantt_picture(
    title: str,
    about: str,
    bars: Sequence[Bar],
    groups: Sequence[str],  # names of the groups; those after the seventh share a colour
    unit: str,  # of the axis of time
    lanes: Sequence[str] = (),  # their names; numbers of GPUs unless given
) -> Any:
    """Draw what lasts in lanes, by group."""
    last = len(_GROUPS) - 1
    named = [*groups[:last], "others"] if len(groups) > last else groups
    handles = [Line2D([], [], lw=8, color=color, label=name) for name, color in zip(named, _GROUPS, strict=False)]
    rows, heights = rows_of(bars)
    figure = _canvas(13, min(9.0, max(4.0, 0.24 * sum(heights) + 1.2)), title, about, handles)
    axes = figure.add_subplot()
    end = max(bar.end for bar in bars)
    for bar, row in zip(bars, rows, strict=True):
        color = _GROUPS[min(bar.group, last)]
        axes.barh(row, bar.end - bar.start, 0.86, bar.start, color=color, edgecolor="white", lw=0.6)
        if (bar.end - bar.start) / end > 0.011 * len(bar.label):
            place = (bar.start + bar.end) / 2, row
            axes.text(*place, bar.label, ha="center", va="center", fontsize=7.5, color="white", clip_on=True)
    tops = [sum(heights[:lane]) for lane in range(len(heights))]
    axes.set_yticks([top + (high - 1) / 2 for top, high in zip(tops, heights, strict=True)])
    axes.set_yticklabels([lanes[lane] if lanes else f"GPU {lane}" for lane in range(len(heights))])
    for top in tops[1:]:
        axes.axhline(top - 0.5, color=GRID, lw=1)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.01 * end)
    axes.set_xlabel(unit, color=FAINT)
    _plain(axes, "Plan, and what came of it" if lanes else "Plan", "bottom")
    return figure
