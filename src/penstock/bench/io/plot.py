# pyright: reportUnknownMemberType=false
"""The benchmark of read mechanisms as a picture: throughput over CPU time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from penstock.basics.sizes import size_text
from penstock.bench.io.page_cache import BUFFERED
from penstock.bench.io.report import medians
from penstock.io.advice.measurements import Measurement

_COLORS = {
    "posix": "#616e7c",
    "direct": "#3fb8af",
    "uring": "#0b7a75",
    "gds": "#e09f3e",
    "gpu": "#7a306c",
    "object": "#0b3c49",
}
_OTHERS = ("#d1495b", "#9b2335", "#e8998d", "#c2788a", "#8a5a83", "#b08968")
_MARKS = {"posix": "s", "direct": "D", "uring": "o", "gds": "P", "gpu": "*", "object": "h"}
_OTHER_MARKS = ("X", "v", "^", "<", ">", "d")
_INK, _FAINT = "#1f2933", "#616e7c"
_COLUMNS = 3


def save(rows: Sequence[Measurement], path: Path) -> None:
    """Draw the measured rows; the file's name gives the format."""
    picture(rows).savefig(path)


def picture(rows: Sequence[Measurement]) -> Any:
    """Draw a panel per size, pattern and destination; points that may come from the page cache are hollow."""
    rows = sorted(medians(rows), key=_place)
    panels = [(key, list(group)) for key, group in groupby(rows, key=_place)]
    columns = min(_COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    known = [mech for mech in _COLORS if any(row.mech == mech for row in rows)]
    mechs = [*known, *sorted({row.mech for row in rows} - {*known})]
    in_line = 3 * max(2, columns) - 1
    cached = any(map(_from_the_cache, rows))
    legend = 0.25 * -(-len(mechs) // in_line)
    head, width = 1.65 + legend + 0.25 * cached, max(8.5, 1.4 + 4.6 * columns)
    height = 0.65 + head + 3.2 * lines + 1.0 * (lines - 1)
    figure: Any = Figure(figsize=(width, height), dpi=120, facecolor="white")
    FigureCanvasAgg(figure)
    left = 0.9 / width
    grid: Any = figure.add_gridspec(
        lines,
        columns,
        left=left,
        right=1 - 0.35 / width,
        top=1 - head / height,
        bottom=0.65 / height,
        hspace=1.0 / 3.2,
        wspace=0.24,
    )
    figure.text(left, 1 - 0.5 / height, "What reading costs", fontsize=19, fontweight="bold", color=_INK)
    figure.text(left, 1 - 1.02 / height, _subtitle(rows), fontsize=9.5, linespacing=1.5, color=_FAINT)
    handles: dict[str, Any] = {}
    for i, (key, group) in enumerate(panels):
        _panel(figure.add_subplot(grid[divmod(i, columns)]), key, group, mechs, handles)
    figure.legend(
        [handles[mech] for mech in mechs],
        mechs,
        loc="upper left",
        bbox_to_anchor=(left - 0.1 / width, 1 - 1.1 / height),
        ncols=in_line,
        frameon=False,
        fontsize=9.5,
        handletextpad=0.4,
        columnspacing=1.4,
    )
    if cached:
        hollow = Line2D([], [], ls="", marker="s", ms=6.5, color=_FAINT, markerfacecolor="white")
        figure.legend(
            [hollow],
            ["hollow: buffered and not cold, so that bytes may have come from the page cache, not from storage"],
            loc="upper left",
            bbox_to_anchor=(left - 0.1 / width, 1 - (1.1 + legend) / height),
            frameon=False,
            fontsize=9.5,
            handletextpad=0.4,
        )
    return figure


def _from_the_cache(row: Measurement) -> bool:
    return row.mech in BUFFERED and not row.cold


def _place(row: Measurement) -> tuple[bool, str, str, int]:
    """Return the key by which rows are grouped into panels and sorted."""
    return row.dest != "host", row.dest, row.pattern, row.bs_bytes


def _subtitle(rows: Sequence[Measurement]) -> str:
    machine = rows[0].machine.partition(", penstock")[0]
    cold = "cold; " if all(row.cold for row in rows) else ""
    return f"{machine}; {cold}{rows[0].date[:10]}\nup: more throughput; left: less CPU; numbers: reads under way"


def _panel(
    axes: Any,
    place: tuple[bool, str, str, int],
    rows: Sequence[Measurement],
    mechs: Sequence[str],
    handles: dict[str, Any],
) -> None:
    _, dest, pattern, bs_bytes = place
    to = "" if dest == "host" else f", to {dest}"
    axes.set_title(
        f"{size_text(bs_bytes)}, {pattern}{to}", loc="left", fontsize=12.5, fontweight="bold", color=_INK
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_FAINT)
    for mech in mechs:
        points = sorted((row for row in rows if row.mech == mech), key=lambda row: (row.threads, row.qd))
        if not points:
            continue
        other = [m for m in mechs if m not in _COLORS].index(mech) if mech not in _COLORS else 0
        xs, ys = [row.cpu_s_per_gib for row in points], [row.mb_s for row in points]
        (handles[mech],) = axes.plot(
            xs,
            ys,
            ls="--" if ":" in mech else "-",
            marker=_MARKS.get(mech) or _OTHER_MARKS[other % len(_OTHER_MARKS)],
            ms=6.5,
            lw=1.6,
            color=_COLORS.get(mech) or _OTHERS[other % len(_OTHERS)],
        )
        hollow = [row for row in points if _from_the_cache(row)]
        axes.plot(
            [row.cpu_s_per_gib for row in hollow],
            [row.mb_s for row in hollow],
            ls="",
            marker=handles[mech].get_marker(),
            ms=6.5,
            color=handles[mech].get_color(),
            markerfacecolor="white",
        )
    _scales(axes)
    _depths(axes, rows, {mech: handles[mech].get_color() for mech in handles})


def _depths(axes: Any, rows: Sequence[Measurement], colors: dict[str, str]) -> None:
    """Write each point's depth beside it, where that covers nothing else."""
    axes.figure.draw_without_rendering()
    points = [axes.transData.transform((row.cpu_s_per_gib, row.mb_s)) for row in rows]
    unit = axes.figure.dpi / 72
    taken = [(x - 4 * unit, y - 4 * unit, x + 4 * unit, y + 4 * unit) for x, y in points]
    for row, (x, y) in zip(rows, points, strict=True):
        text = str(row.qd)
        width, height = 5.5 * len(text) * unit, 8 * unit
        for right, up in ((1, 1), (-1, 1), (1, -1), (-1, -1), (1, 0), (-1, 0)):
            left = x + 5 * unit if right > 0 else x - 5 * unit - width
            low = y - height / 2 + up * 7 * unit
            box = (left, low, left + width, low + height)
            if not any(_meet(box, other) for other in taken):
                taken.append(box)
                place = ((left - x) / unit, (low - y) / unit + 1)
                point = (row.cpu_s_per_gib, row.mb_s)
                color = colors[row.mech]
                axes.annotate(text, point, xytext=place, textcoords="offset points", fontsize=8, color=color)
                break


def _meet(one: tuple[float, ...], two: tuple[float, ...]) -> bool:
    return one[0] < two[2] and two[0] < one[2] and one[1] < two[3] and two[1] < one[3]


def _scales(axes: Any) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.margins(0.14)
    axes.set_xlabel("CPU-seconds per GiB", color=_FAINT)
    axes.set_ylabel("MB/s", color=_FAINT)
    for axis, subs in ((axes.xaxis, (1, 2, 5)), (axes.yaxis, (1, 1.5, 2, 3, 5, 7))):
        axis.set_major_locator(LogLocator(subs=subs))
        axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(color="#e4e7eb", lw=0.7)
