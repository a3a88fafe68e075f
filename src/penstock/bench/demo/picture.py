"""The demo's report as a picture."""
# matplotlib describes its types in part only.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from penstock.bench.demo.results import Report

_BEFORE, _AFTER = "#9aa5b1", "#0b7a75"
_COLORS = {2: (_BEFORE, _AFTER), 3: (_BEFORE, "#7cc0b8", _AFTER)}  # by the number of arms
_NAMES = "a DataLoader for each run", "all from one Penstock feed", "from one feed of an ImageSource"
_INK, _FAINT = "#1f2933", "#616e7c"
_BARS = 0.76


def save_picture(report: Report, path: Path) -> None:
    """Draw the report: each run, and what all of them take together."""
    figure = Figure(figsize=(12, 7.4), facecolor="white")
    FigureCanvasAgg(figure)
    figure.text(
        0.06,
        0.945,
        _title(report),
        fontsize=20,
        fontweight="bold",
        color=_INK,
    )
    data, machine = report.data, report.machine
    figure.text(
        0.06,
        0.902,
        f"{data.name}: {data.train_images:,} JPEGs of {data.mean_bytes / 1000:,.0f} KB, decoded and cropped to "
        f"{data.crop_px} px, {report.epochs} epochs. {machine.cpu}, {machine.cores} cores, "
        f"{report.separate.workers} loader workers; models on {machine.device}.",
        fontsize=10.5,
        color=_FAINT,
    )
    grid = figure.add_gridspec(
        2, 1, left=0.06, right=0.965, top=0.79, bottom=0.075, hspace=0.62, height_ratios=(1.15, 1)
    )
    axes = figure.add_subplot(grid[0])
    _runs(axes, report)
    _totals(figure, grid[1], report)
    figure.legend(
        handles=_handles(axes),
        loc="upper left",
        bbox_to_anchor=(0.052, 0.89),
        ncols=3,
        frameon=False,
        fontsize=11,
    )
    figure.text(0.06, 0.022, report.disturbed(), fontsize=9, color=_FAINT)
    figure.savefig(path, dpi=130)


def _title(report: Report) -> str:
    """Return the title, with the ratio to rely on: of CPU time if others used the machine meanwhile."""
    feed, ratio = f"One feed for {len(report.shared.runs)} training runs", report.last_over_separate
    if not report.disturbed():
        return f"{feed}: {ratio.images_per_s:.1f} times the images per second"
    return f"{feed}: {ratio.cpu_s_per_1000_images:.0%} of the CPU time per image"


def _handles(axes: Any) -> list[Any]:
    for bars, name in zip(axes.containers, _NAMES, strict=False):
        bars.set_label(name)
    return list(axes.containers)


def _totals(figure: Figure, place: Any, report: Report) -> None:
    panels: tuple[tuple[str, Callable[[Any], float], Callable[[float], str], bool], ...] = (
        ("Images per second,\nall together", lambda arm: arm.images_per_s, lambda value: f"{value:,.0f}", True),
        (
            "CPU seconds\nper 1,000 images",
            lambda arm: arm.cpu_s_per_1000_images,
            lambda value: f"{value:.2f}",
            False,
        ),
        (
            "Memory, MiB\n(peak PSS)",
            lambda arm: arm.peak_pss_bytes / 2**20,
            lambda value: f"{value:,.0f}",
            False,
        ),
    )
    inner = place.subgridspec(1, len(panels), wspace=0.28)
    for number, (title, value_of, show, more_is_better) in enumerate(panels):
        values = [value_of(arm) for arm in report.arms.values()]
        axes = figure.add_subplot(inner[number])
        bars = axes.barh(range(len(values))[::-1], values, 0.62, color=_COLORS[len(values)])
        axes.bar_label(bars, list(map(show, values)), padding=5, fontsize=11, color=_INK)
        axes.set_xlim(0, 1.3 * max(values))
        axes.set_ylim(-0.5, len(values) - 0.5)
        axes.set_xticks([])
        axes.set_yticks([])
        _plain(axes, title, "left")
        times = values[-1] / values[0]
        gain = f"{times:.1f}×" if more_is_better else f"{times - 1:+.0%}".replace("-", "−")
        color = _AFTER if (times > 1) == more_is_better else _FAINT
        axes.text(
            1.0, 1.07, gain, transform=axes.transAxes, ha="right", fontsize=17, fontweight="bold", color=color
        )


def _runs(axes: Any, report: Report) -> None:
    arms = [[run.images_per_s for run in arm.runs] for arm in report.arms.values()]
    names = [f"width {run.width}\nlr {run.learning_rate:g}\nbatch {run.batch_size}" for run in report.shared.runs]
    small = len(names) > 6
    width = _BARS / len(arms)
    for i, (values, color) in enumerate(zip(arms, _COLORS[len(arms)], strict=True)):
        offset = (i + 0.5) * width - _BARS / 2
        bars = axes.bar([number + offset for number in range(len(values))], values, width - 0.02, color=color)
        axes.bar_label(
            bars, [f"{value:,.0f}" for value in values], padding=2, fontsize=7 if small else 9.5, color=_INK
        )
    axes.set_xticks(range(len(names)), names, fontsize=7 if small else 9, color=_FAINT)
    axes.set_ylim(0, 1.12 * max(map(max, arms)))
    axes.set_yticks([])
    _plain(axes, "Images per second, each run", "bottom")


def _plain(axes: Any, title: str, line: str) -> None:
    """Set the title, and keep only the line of the frame that the bars stand on."""
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=_INK, pad=10)
    for side in axes.spines:
        axes.spines[side].set_visible(side == line)
        axes.spines[side].set_color("#cbd2d9")
    axes.tick_params(length=0)
