# pyright: reportUnknownMemberType=false
"""The sharing benchmark as a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.share.claims import Claim
from benchmarks.share.result import Result
from benchmarks.share.run import Report
from benchmarks.share.tables import ARMS, median
from benchmarks.share.tensorsocket import NOT_INSTALLED
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator, StrMethodFormatter

_COLORS = {
    "alone": "#616e7c",
    "separate": "#9aa5b1",
    "penstock": "#0b7a75",
    "borrow": "#3fb8af",
    "tensorsocket": "#d1495b",
}
_MARKS = {"separate": "s", "penstock": "o", "borrow": "D", "tensorsocket": "X"}
_SIZES = ("#0b3c49", "#0b7a75", "#e09f3e", "#7a306c")
_INK, _FAINT = "#1f2933", "#616e7c"


def save(report: Report, rows: Sequence[Claim], path: Path) -> None:
    """Draw a report and its claims; the file's name gives the format."""
    figure: Any = Figure(figsize=(13, 9.4), facecolor="white")
    FigureCanvasAgg(figure)
    top = 0.84
    grid: Any = figure.add_gridspec(2, 2, left=0.065, right=0.975, top=top, bottom=0.07, hspace=0.42, wspace=0.27)
    figure.text(0.065, 0.945, _headline(report), fontsize=19, fontweight="bold", color=_INK)
    figure.text(0.065, 0.908, _subtitle(report), fontsize=10.5, color=_FAINT)
    if any(workload.name == "JPEG" for workload in report.workloads):
        _together(report, figure.add_subplot(grid[0, 0]))
        _cpu(report, figure.add_subplot(grid[0, 1]))
    _blocks(report, figure.add_subplot(grid[1, 0]))
    _claims(rows, figure.add_subplot(grid[1, 1]))
    figure.savefig(path, dpi=120)


def _headline(report: Report) -> str:
    most = max(report.settings.trainers)
    one = median(report.results, "JPEG", "penstock", most, "together")
    two = median(report.results, "JPEG", "separate", most, "together")
    if one and two:
        return f"{most} trainers on one feed: {one / two:.1f} times the images of {most} DataLoaders"
    return "One feed for all trainers"


def _subtitle(report: Report) -> str:
    machine, settings = report.machine, report.settings
    gpu = ", ".join(machine.gpus) or "no GPU"
    step = "a wait of 0 ms" if settings.step_ms == 0 else f"a wait of {settings.step_ms:g} ms"
    return (
        f"{machine.cpu}, {machine.cores} cores, {gpu}; {settings.workers} loader workers in total; {step} "
        f"in place of each step; medians of {settings.repeats}, bars: least to most; {machine.date[:10]}"
    )


def _together(report: Report, axes: Any) -> None:
    _titled(axes, "JPEG loader: samples/s, all trainers together", report.data)
    alone = median(report.results, "JPEG", "alone", 1, "together")
    if alone:
        counts = report.settings.trainers
        label = "K times a DataLoader alone"
        axes.plot(counts, [alone * k for k in counts], ls=":", lw=1.4, color=_FAINT, label=label)
    for arm in _MARKS:
        _line(report, axes, "JPEG", arm, lambda result: result.together)
    _log_axes(axes, report)
    axes.legend(frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1, 0.07))
    given_up = [c for c in report.results if (c.workload, c.arm, c.finished) == ("JPEG", "tensorsocket", False)]
    if given_up and given_up[0].note != NOT_INSTALLED:
        counts = ", ".join(str(result.trainers) for result in given_up)
        note = f"TensorSocket did not finish with {counts}"
        axes.text(
            0.98, 0.03, note, transform=axes.transAxes, ha="right", fontsize=9, color=_COLORS["tensorsocket"]
        )


def _cpu(report: Report, axes: Any) -> None:
    _titled(axes, "JPEG loader: CPU-seconds per 1,000 samples delivered", "feeder, workers and trainers")
    for arm in _MARKS:
        _line(report, axes, "JPEG", arm, lambda result: result.feeder_cpu_s + result.trainers_cpu_s)
    _log_axes(axes, report)


def _blocks(report: Report, axes: Any) -> None:
    _titled(axes, "Blocks from memory: blocks/s to each trainer", "solid: private copies; dashed: borrow=True")
    names = [workload.name for workload in report.workloads if workload.kind == "blocks"]
    for color, name in zip(_SIZES, names, strict=False):
        for arm, style in (("penstock", "-"), ("borrow", "--"), ("separate", ":"), ("tensorsocket", "")):
            label = name if arm == "penstock" else None
            _line(
                report,
                axes,
                name,
                arm,
                lambda result: min(result.batches_per_s),
                color=color,
                style=style,
                label=label,
            )
    _log_axes(axes, report)
    axes.plot([], [], ls=":", marker="s", ms=4, color=_FAINT, label="separate DataLoaders")
    if any(result.arm == "tensorsocket" and result.finished for result in report.results):
        axes.plot([], [], ls="", marker="X", color=_FAINT, label="TensorSocket 0.0.5")
    axes.set_ylim(top=axes.get_ylim()[1] * 10)  # room for the legend
    axes.legend(frameon=False, fontsize=9, ncols=2, loc="upper right")


def _claims(rows: Sequence[Claim], axes: Any) -> None:
    """Draw how far each claim is from its target, as a ratio that should be 1 or more."""
    judged = [row for row in rows if row.measured is not None and row.met is not None][::-1]
    _titled(axes, "Claims: how many times better than its target", "1 is the target; bars: least to most")
    for y, row in enumerate(judged):
        assert row.measured is not None and row.spread is not None
        better = _ratio(row, row.measured)
        ends = sorted(_ratio(row, end) for end in row.spread)
        color = _COLORS["penstock"] if row.met else _COLORS["tensorsocket"]
        axes.plot(ends, [y, y], color=color, lw=2, alpha=0.45, solid_capstyle="round")
        axes.plot([better], [y], "o", color=color, ms=6)
    axes.axvline(1, color=_INK, lw=1)
    axes.set_yticks(range(len(judged)), [row.name for row in judged], fontsize=8, color=_INK)
    axes.set_ylim(-0.7, len(judged) - 0.3)
    axes.set_xscale("log")
    _plain(axes.xaxis)
    axes.grid(axis="x", color="#e4e7eb", lw=0.7)


def _ratio(row: Claim, value: float) -> float:
    ratio = value / row.target if row.at_least else row.target / max(value, 1e-9)
    return min(30.0, max(0.03, ratio))


def _line(
    report: Report,
    axes: Any,
    workload: str,
    arm: str,
    value: Callable[[Result], float],
    *,
    color: str = "",
    style: str = "-",
    label: str | None = "",
) -> None:
    """Draw one arm over the number of trainers: median, least and most."""
    points: list[tuple[int, float, float, float]] = []
    for trainers in report.settings.trainers:
        kind = "alone" if arm == "separate" and trainers == 1 and workload == "JPEG" else arm
        of_case = [c for c in report.results if (c.workload, c.arm, c.trainers) == (workload, kind, trainers)]
        values = sorted(value(result) for result in of_case if result.finished)
        if values:
            points.append((trainers, values[len(values) // 2], values[0], values[-1]))
    if not points:
        return
    counts, middles, lows, highs = zip(*points, strict=True)
    axes.errorbar(
        counts,
        middles,
        yerr=[
            [m - low for m, low in zip(middles, lows, strict=True)],
            [high - m for m, high in zip(middles, highs, strict=True)],
        ],
        ls=style,
        marker=_MARKS[arm],
        ms=5,
        lw=1.8,
        elinewidth=1,
        color=color or _COLORS[arm],
        label=ARMS[arm] if label == "" else label,
    )


def _titled(axes: Any, title: str, subtitle: str) -> None:
    axes.set_title(title, loc="left", fontsize=12.5, fontweight="bold", color=_INK, pad=22)
    axes.text(0, 1.03, subtitle, transform=axes.transAxes, fontsize=9.5, color=_FAINT)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_FAINT)


def _log_axes(axes: Any, report: Report) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(report.settings.trainers, [str(k) for k in report.settings.trainers])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("trainers", color=_FAINT)
    _plain(axes.yaxis)
    axes.grid(axis="y", color="#e4e7eb", lw=0.7)


def _plain(axis: Any) -> None:
    """Format an axis with plain numbers, not powers of ten."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    axis.set_minor_formatter(NullFormatter())
