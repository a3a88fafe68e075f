# pyright: reportUnknownMemberType=false
"""A report as a picture: speed, CPU time and memory over the number of trainers."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from penstock.bench.measure.spread import Spread
from penstock.bench.share.plan import Arm
from penstock.bench.share.report import Report, Result
from penstock.bench.share.table import notes, short

_INK, _FAINT, _GRID = "#1f2933", "#616e7c", "#e4e7eb"
_LINES: tuple[tuple[Arm, str, str, str], ...] = (
    ("separate", "a loader in each trainer", "#9aa5b1", "s"),
    ("shared", "one feed for all", "#0b7a75", "o"),
)


def save(report: Report, path: Path) -> None:
    """Draw a report; the file's name gives the format."""
    figure: Any = Figure(figsize=(13, 5.2), facecolor="white")
    FigureCanvasAgg(figure)
    figure.text(
        0.05, 0.905, _wrapped(report.sentence, 104), fontsize=14, fontweight="bold", color=_INK, va="center"
    )
    figure.text(0.05, 0.795, _subtitle(report), fontsize=10, color=_FAINT, va="center")
    grid: Any = figure.add_gridspec(1, 3, left=0.05, right=0.985, top=0.64, bottom=0.115, wspace=0.2)
    panels: tuple[tuple[str, Callable[[Result], float]], ...] = (
        ("Samples/s, all trainers together", lambda result: result.together),
        ("CPU-seconds for 1,000 samples", lambda result: result.cpu_s_per_1000_samples),
        ("Memory of all processes (PSS), MiB", lambda result: result.pss_bytes / 2**20),
    )
    for place, (title, figure_of) in enumerate(panels):
        axes = figure.add_subplot(grid[place])
        _panel(report, axes, title, figure_of)
        if place == 0:
            _ideal(report, axes)
            axes.legend(frameon=False, fontsize=9.5, loc="upper left")
    figure.savefig(path, dpi=120)


def _panel(report: Report, axes: Any, title: str, figure_of: Callable[[Result], float]) -> None:
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=_INK, pad=12)
    for arm, label, color, mark in _LINES:
        # One trainer with its own loader is the case "alone".
        of_arm = [(k, report.of("alone" if k == 1 and arm == "separate" else arm, k)) for k in _trainers(report)]
        points = [(k, Spread.of(list(map(figure_of, results)))) for k, results in of_arm if results]
        middles = [spread.median for _, spread in points]
        errors = [
            [spread.median - spread.least for _, spread in points],
            [spread.most - spread.median for _, spread in points],
        ]
        counts = [k for k, _ in points]
        axes.errorbar(
            counts, middles, yerr=errors, marker=mark, ms=6, lw=2, elinewidth=1, color=color, label=label
        )
    axes.set_xticks(_trainers(report))
    axes.set_xlabel("trainers", color=_FAINT)
    axes.set_ylim(bottom=0, top=1.12 * axes.get_ylim()[1])
    axes.set_xlim(right=1.06 * max(_trainers(report)))
    axes.yaxis.set_major_formatter(_tick)
    axes.grid(axis="y", color=_GRID, lw=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_FAINT)


def _tick(value: float, _: int) -> str:
    return short(value)


def _ideal(report: Report, axes: Any) -> None:
    """Draw what the trainers would reach on a machine each."""
    alone = statistics.median(result.together for result in report.of("alone", 1))
    counts = _trainers(report)
    ideal = [alone * k for k in counts]
    axes.plot(counts, ideal, ls=":", lw=1.4, color=_FAINT, label="trainers × the loader alone", zorder=1)
    axes.set_ylim(top=max(axes.get_ylim()[1], 1.3 * ideal[-1]))


def _trainers(report: Report) -> list[int]:
    return sorted({1, *report.settings.trainers})


def _subtitle(report: Report) -> str:
    settings, machine = report.settings, report.machine
    step = f"steps of {settings.step_ms:g} ms" if settings.step_ms else "no steps"
    repeats = f"medians of {settings.repeats}, bars: least to most" if settings.repeats > 1 else "measured once"
    about = (
        f"{report.function}: {report.loader.description}; {step}; {repeats}. "
        f"{machine.cpu}, {machine.cores} cores, {machine.date[:10]}."
    )
    return _wrapped(" ".join([about, *notes(report)]), 165)


def _wrapped(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text.replace("$", r"\$"), width))
