"""A comparison as a picture: what each arm reaches, against what it costs."""

# matplotlib describes its types in part only.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from penstock.select.bench.report import RUNS, Report, Row
from penstock.select.bench.run import Results
from penstock.select.bench.spec import UNSCORED
from penstock.select.meter import J_PER_WH

_INK, _FAINT, _BASE, _OURS = "#1f2933", "#616e7c", "#9aa5b1", "#0b7a75"


def save_picture(report: Report, results: Results, path: Path) -> None:
    """Draw all arms, and below them the choice on fresh seeds; faint marks are costs that more runs share.

    Against minutes and measured energy; without counters, against CPU time, of which energy is a multiple.
    """
    spec, machine = results.spec, results.machine
    measured = all(outcome.wh is not None for outcome in results.outcomes.values())
    measures = ("minutes", "Wh") if measured else (f"CPU-seconds (1 Wh is {J_PER_WH / spec.watts:,.0f} of them)",)
    rows = [("all arms", report.on_seeds), ("the choice, on fresh seeds", report.on_fresh_seeds)]
    rows = [(title, each) for title, each in rows if each]
    figure = Figure(figsize=(8.5 * len(measures), 5.2 * len(rows)), facecolor="white")
    canvas = FigureCanvasAgg(figure)
    apart = list[list[Any]]()
    for place, ((title, each), measure) in enumerate((row, measure) for row in rows for measure in measures):
        axes = figure.add_subplot(len(rows), len(measures), place + 1)
        labels = [_draw(axes, row, measure, scored=spec.arms[row.arm].method not in UNSCORED) for row in each]
        axes.set_title(f"{spec.name}: {title}", loc="left", fontsize=12, fontweight="bold", color=_INK)
        axes.set_xlabel(f"{measure}, selection included", color=_FAINT)
        axes.set_ylabel(spec.metric, color=_FAINT)
        axes.set_xlim(0, axes.get_xlim()[1] * 1.12)
        axes.grid(color="#e4e7eb", linewidth=0.8)
        axes.set_axisbelow(True)
        for side in axes.spines:
            axes.spines[side].set_visible(False)
        axes.tick_params(length=0, colors=_FAINT)
        apart.append(labels)
    where = ", ".join(machine.gpus) or f"{machine.cores} cores of {machine.cpu}"
    figure.text(
        0.01,
        0.01,
        f"Medians, and the least and most of the seeds. Faint: the selection is shared by {RUNS[1]} and {RUNS[2]} "
        f"runs.\n{where}, {machine.date[:10]}.",
        fontsize=8.5,
        color=_FAINT,
    )
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    for labels in apart:
        _keep_apart(labels, canvas.get_renderer())
    figure.savefig(path, dpi=110)


def _draw(axes: Any, row: Row, measure: str, *, scored: bool) -> Any:
    """Draw an arm; return its label."""
    scoring, training = {
        "minutes": (row.scoring_s / 60, row.training_s / 60),
        "Wh": (row.scoring_wh, row.training_wh),
    }.get(measure, (row.scoring_cpu_s, row.training_cpu_s))
    color, middle = (_OURS if scored else _BASE), row.metric.median
    costs = [training + scoring / runs for runs in RUNS]
    if scored:
        axes.plot(costs, [middle] * len(costs), color=color, alpha=0.35, linewidth=1, marker="o", markersize=4)
    spread = [[middle - row.metric.least], [row.metric.most - middle]]
    axes.errorbar(
        [costs[0]], [middle], yerr=spread, color=color, marker="o", markersize=7, capsize=3, linewidth=1.2
    )
    return axes.annotate(
        row.label, (costs[0], middle), xytext=(6, 5), textcoords="offset points", fontsize=8.5, color=_INK
    )


def _keep_apart(labels: list[Any], renderer: Any) -> None:
    """Move labels up or down, the nearest way, until none lies on another."""
    placed = list[Any]()
    for label in labels:
        for up in sorted(range(-10, 11), key=abs):
            label.set_position((6, 5 + 12 * up))
            extent = label.get_window_extent(renderer)
            if not any(extent.overlaps(other) for other in placed):
                break
        placed.append(label.get_window_extent(renderer))
