"""A report as a table for a terminal of 80 columns; print it with ``soft_wrap``."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from penstock.basics.terminal import printable
from penstock.bench.measure.spread import Spread
from penstock.bench.share.plan import Arm
from penstock.bench.share.report import Report, Result

_WIDTH = 80
_ARMS: tuple[tuple[Arm, str], ...] = (
    ("alone", "the loader alone"),
    ("separate", "a loader each"),
    ("shared", "one feed"),
)


def shown(report: Report) -> Group:
    """Show the cases, grouped by number of trainers, and the sentence that sums them up."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("\n\nfed by", no_wrap=True)
    for heading in (
        "\n\nworkers",
        "\nsamples/s,\nslowest trainer",
        "\n\ntogether",
        "CPU-s,\n1,000\nsamples",
        "\nmemory,\nMiB",
    ):
        table.add_column(heading, justify="right", no_wrap="slowest" not in heading)  # the spread may wrap
    for trainers in dict.fromkeys((1, *report.settings.trainers)):
        table.add_row(Text(f"{trainers} trainer{'s' * (trainers > 1)}", "bold"))
        for arm, words in _ARMS:
            if results := report.of(arm, trainers):
                table.add_row(f"  {words}", *_figures(results), style="green" if arm == "shared" else "")
    return Group(
        Text(_heading(report), "bold"),
        Text(_about(report), "dim"),
        table,
        Text(),
        Text("\n".join(textwrap.wrap(report.sentence, _WIDTH)), "bold green"),
        *(Text("\n".join(textwrap.wrap(note, _WIDTH)), "yellow") for note in notes(report)),
    )


def notes(report: Report) -> list[str]:
    """Say what to know about the figures."""
    found: list[str] = []
    workers = report.loader.workers
    if workers is None:
        found.append("It is no DataLoader: each trainer with a source of its own runs the whole source.")
    elif 0 < workers < max(report.settings.trainers):
        found.append(
            f"The loader has {workers} worker{'s' * (workers > 1)}: with more trainers than that, a loader each "
            "has one, so together they have more workers than the feed."
        )
    if report.settings.quick:
        found.append("A smoke run: its figures prove nothing.")
    return found


def _heading(report: Report) -> str:
    return textwrap.shorten(f"{report.function}: {printable(report.loader.description)}", _WIDTH, placeholder="…")


def _about(report: Report) -> str:
    settings, machine = report.settings, report.machine
    step = f"steps of {settings.step_ms:g} ms" if settings.step_ms else "no steps"
    repeats = f"medians of {settings.repeats} (least–most)" if settings.repeats > 1 else "measured once"
    about = f"{machine.cpu}, {machine.cores} cores; {step}, {settings.seconds:g} s each, {repeats}"
    return "\n".join(textwrap.wrap(about, _WIDTH))


def _figures(results: Sequence[Result]) -> list[str]:
    slowest = Spread.of([result.slowest for result in results])
    spread = f" ({short(slowest.least)}–{short(slowest.most)})" if len(results) > 1 else ""
    workers = results[0].workers
    return [
        "" if workers is None else str(workers),
        short(slowest.median) + spread,
        short(statistics.median(result.together for result in results)),
        short(statistics.median(result.cpu_s_per_1000_samples for result in results)),
        f"{statistics.median(result.pss_bytes for result in results) / 2**20:,.0f}",
    ]


def short(value: float) -> str:
    """Format a number with three digits, or as a whole number."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
