"""The sharing benchmark as a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.share.result import Result
from benchmarks.share.run import Report
from benchmarks.share.tables import ARMS, median

from penstock.basics.pictures import AFTER, BEFORE, FAINT, Curve, Mark, Panel, series_picture
from penstock.basics.results import Spread

_STYLES = {
    "separate": (BEFORE, "s"),
    "penstock": (AFTER, "o"),
    "borrow": ("#3fb8af", "D"),
    "tensorsocket": ("#d1495b", "X"),
}
_FIGURES: dict[str, tuple[str, Callable[[Result], float]]] = {  # of a kind of workload
    "jpeg": ("samples/s, all trainers together", lambda one: one.together),
    "blocks": ("blocks/s to the slowest trainer", lambda one: min(one.batches_per_s)),
}


def save(report: Report, path: Path) -> None:
    """Draw a report; the file's name gives the format."""
    panels: list[Panel] = []
    for workload in report.workloads:
        alone = median(report.results, workload.name, "alone", 1, "together")
        ideal = [Mark(k, alone * k) for k in report.settings.trainers] if alone else []
        times = [Curve("trainers × the loader alone", FAINT, ideal, "", ":")] if alone else []
        panels.append(_panel(report, workload.name, *_FIGURES[workload.kind], *times))
        if workload.kind == "jpeg":
            cpu_s = "CPU-seconds for 1,000 samples"
            panels.append(_panel(report, workload.name, cpu_s, lambda one: one.feeder_cpu_s + one.trainers_cpu_s))
    machine, settings = report.machine, report.settings
    about = (
        f"{machine.cpu}, {machine.cores} cores, {', '.join(machine.gpus) or 'no GPU'}, {machine.date[:10]}; "
        f"{settings.workers} loader workers in total; steps of {settings.step_ms:g} ms; "
        f"medians of {settings.repeats}, bars: least to most"
    )
    picture = series_picture("Trainers on one feed", about, panels, columns=3)
    picture.savefig(path)


def _panel(report: Report, workload: str, title: str, figure: Callable[[Result], float], *more: Curve) -> Panel:
    curves = [
        Curve(ARMS[arm], color, _points(report, workload, arm, figure), marker)
        for arm, (color, marker) in _STYLES.items()
    ]
    drawn = [*(curve for curve in curves if curve.points), *more]
    return Panel(f"{workload}: {title}", drawn, "trainers", counts=report.settings.trainers)


def _points(report: Report, workload: str, arm: str, figure: Callable[[Result], float]) -> list[Mark]:
    points: list[Mark] = []
    for trainers in report.settings.trainers:
        case = (workload, "alone" if (arm, trainers, workload) == ("separate", 1, "JPEG") else arm, trainers)
        values = [
            figure(one) for one in report.results if one.finished and (one.workload, one.arm, one.trainers) == case
        ]
        if values:
            spread = Spread.of(values)
            points.append(Mark(trainers, spread.median, spread=(spread.least, spread.most)))
    return points
