"""What ``penstock bench share`` found: figures, ratios, the sentence that sums them up, table and picture."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any, Literal

import msgspec
from rich.console import Group
from rich.text import Text

from penstock.basics.results import Spread, results_table, short
from penstock.basics.terminal import printable
from penstock.bench.experiment import Report
from penstock.errors import BadSetting
from penstock.feed.settings import DEFAULT_WINDOW, bytes_from

MOST_TRAINERS = 64
_WIDTH = 80
_SAME = 0.05
_KEEPS_UP = 0.9
_FEW = 5
"""Batches of which a rate says little."""
_MORE = "Run with -k 2 or more to see what sharing brings."
Kind = Literal["alone", "separate", "shared"]
_KINDS: dict[Kind, str] = {"alone": "the loader alone", "separate": "a loader each", "shared": "one feed"}


class UsersLoader(msgspec.Struct, frozen=True):
    """Describes what a user's function makes."""

    description: str  # the source in words, as a feed's statistics have it
    workers: int | None  # workers of a ``DataLoader``; None for another source
    batch_size: int | None
    samples: int | None  # samples of one pass; None if unknown


class SharePlan(msgspec.Struct, frozen=True, kw_only=True):
    """How the benchmark runs."""

    trainers: tuple[int, ...] = (1, 2, 4, 8)  # numbers of trainers at once, one per case
    step_ms: float = 0.0  # time that a trainer waits for each batch, in place of training on it
    seconds: float = 4.0  # measured time of each case
    repeats: int = 3
    window: str = DEFAULT_WINDOW  # size of the feed's ring

    def check(self) -> None:
        """Check the numbers."""
        if not self.trainers or not all(1 <= k <= MOST_TRAINERS for k in self.trainers):
            given = ",".join(map(str, self.trainers))
            raise BadSetting(f"--trainers {given}: give numbers between 1 and {MOST_TRAINERS}, such as 1,2,4,8")
        for name, value, least, most in (
            ("repeats", self.repeats, 1, 1000),
            ("seconds", self.seconds, 1, 3600),
            ("step-ms", self.step_ms, 0, 60_000),
        ):
            if not least <= value <= most:  # NaN is not
                raise BadSetting(f"--{name} {value:g}: from {least:g} to {most:,}")
        bytes_from(self.window)


class ShareFigures(msgspec.Struct, frozen=True):
    """The figures of one case in one repeat."""

    kind: Kind
    trainers: int
    workers: int | None  # loader workers of all processes together; None for a source that has none
    samples_per_s: tuple[float, ...]  # samples per second of each trainer
    batches_per_s: tuple[float, ...]  # batches per second of each trainer
    cpu_s_per_1000_samples: float  # CPU time of all processes, for 1,000 samples delivered to one trainer
    pss_bytes: int  # the most memory of all processes at one moment; a page that n share counts once

    @property
    def slowest(self) -> float:
        """Samples per second of the slowest trainer."""
        return min(self.samples_per_s)

    @property
    def together(self) -> float:
        """Samples per second of all trainers together."""
        return sum(self.samples_per_s)


class Gain(msgspec.Struct, frozen=True):
    """Ratios of one feed to separate loaders (to the loader alone, for one trainer), each within a repeat."""

    trainers: int
    together: Spread  # ratio of samples per second, all trainers together
    cpu: Spread  # ratio of CPU time per sample
    memory: Spread  # ratio of PSS
    steps_kept: float | None
    """Batches per second of the slowest trainer with its own loader, as a part of what ``step_ms`` allows; None
    without steps."""


class ShareReport(Report[SharePlan, ShareFigures]):
    """Everything that one run measured."""

    function: str  # the user's function that makes the loader
    loader: UsersLoader
    comparisons: list[Gain] = msgspec.field(default_factory=list[Gain])


def named(kind: Kind, trainers: int) -> str:
    """Return the name of a case.

    >>> named("alone", 1), named("separate", 4)
    ('the loader alone', '4 trainers, a loader each')
    """
    return _KINDS[kind] if kind == "alone" else f"{_trainers(trainers)}, {_KINDS[kind]}"


def _trainers(count: int) -> str:
    return f"{count} trainer{'s' * (count > 1)}"


def compared(report: ShareReport, trainers: int) -> Gain:
    """Compare a feed of this many trainers with separate loaders, or with the loader alone."""
    own, shared = named("separate" if trainers > 1 else "alone", trainers), named("shared", trainers)
    step_s = report.settings.step_ms / 1e3
    return Gain(
        trainers,
        report.ratio(shared, own, lambda one: one.together),
        report.ratio(shared, own, lambda one: one.cpu_s_per_1000_samples),
        report.ratio(shared, own, lambda one: one.pss_bytes),
        report.spread(own, lambda one: min(one.batches_per_s)).median * step_s if step_s else None,
    )


def sentence(gain: Gain, step_ms: float) -> str:
    """Return what sharing brings with this many trainers."""
    speed, cpu = gain.together, gain.cpu.median
    gives = f"gives {speed} times the samples/s of"
    at = f"with {short(cpu)} times the CPU time per sample"
    if gain.trainers == 1:
        return f"With 1 trainer, a feed {gives} the loader alone, {at}. {_MORE}"
    with_k = f"ith {gain.trainers} trainers, one feed"
    if speed.median >= 1 + _SAME and speed.least > 1:
        return f"W{with_k} {gives} separate loaders, {at}."
    if speed.median <= 1 - _SAME and speed.most < 1:
        return f"Sharing slows this down: w{with_k} {gives} separate loaders, {at}."
    why = ""
    if gain.steps_kept is not None and gain.steps_kept >= _KEEPS_UP:
        why = f" Loading is not what limits training here: with steps of {step_ms:g} ms, separate loaders keep up."
    brings = "Sharing brings nothing here"
    if cpu <= 1 - 2 * _SAME:
        brings = "Sharing saves CPU time here, and brings no speed"
    return f"{brings}: w{with_k} {gives} separate loaders, {at}.{why}"


def shown(report: ShareReport) -> Group:
    """Show the cases, grouped by number of trainers, and the sentence that sums them up, in 80 columns.

    Print it with ``soft_wrap``.
    """
    table = results_table(
        "\n\nfed by",
        "\n\nworkers",
        "\nsamples/s,\nslowest trainer",
        "\n\ntogether",
        "CPU-s,\n1,000\nsamples",
        "\nmemory,\nMiB",
    )
    table.columns[2].no_wrap = False  # the spread may wrap
    for trainers in _counts(report):
        table.add_row(Text(_trainers(trainers), "bold"))
        for kind, words in _KINDS.items():
            if (name := named(kind, trainers)) in report.arms and (kind != "alone" or trainers == 1):
                table.add_row(f"  {words}", *_figures(report, name), style="green" if kind == "shared" else "")
    settings, machine = report.settings, report.machine
    heading = f"{report.function}: {printable(report.loader.description)}"
    repeats = f"medians of {settings.repeats} (least–most)" if settings.repeats > 1 else "measured once"
    about = f"{machine.cpu}, {machine.cores} cores; {_step(report)}, {settings.seconds:g} s each, {repeats}"
    return Group(
        Text(textwrap.shorten(heading, _WIDTH, placeholder="…"), "bold"),
        Text(textwrap.fill(about, _WIDTH), "dim"),
        table,
        Text(),
        Text(textwrap.fill(report.sentence, _WIDTH), "bold green"),
        *(Text(textwrap.fill(note, _WIDTH), "yellow") for note in _notes(report)),
    )


def _counts(report: ShareReport) -> list[int]:
    return sorted({1, *report.settings.trainers})


def _step(report: ShareReport) -> str:
    return f"steps of {report.settings.step_ms:g} ms" if report.settings.step_ms else "no steps"


def _notes(report: ShareReport) -> list[str]:
    """Return what to know about the figures."""
    found: list[str] = []
    workers, seconds = report.loader.workers, report.settings.seconds
    fewest = min((min(each.figures.batches_per_s) for each in report.results), default=_FEW) * seconds
    if fewest < _FEW:
        found.append(
            f"A trainer had about {fewest:.1f} batches in {seconds:g} s: so few say little; make --seconds larger."
        )
    if workers is None:
        found.append("It is no DataLoader: each trainer with a source of its own runs the whole source.")
    elif 0 < workers < max(report.settings.trainers):
        found.append(
            f"The loader has {workers} worker{'s' * (workers > 1)}: with more trainers than that, a loader each "
            "has one, so together they have more workers than the feed."
        )
    return found


def _figures(report: ShareReport, arm: str) -> list[str]:
    workers = next(iter(report.of(arm).values())).workers
    return [
        "" if workers is None else str(workers),
        str(report.spread(arm, lambda one: one.slowest)),
        short(report.spread(arm, lambda one: one.together).median),
        short(report.spread(arm, lambda one: one.cpu_s_per_1000_samples).median),
        f"{report.spread(arm, lambda one: one.pss_bytes).median / 2**20:,.0f}",
    ]


def picture(report: ShareReport) -> Any:
    """Draw speed, CPU time and memory over the number of trainers."""
    from penstock.basics.pictures import AFTER, BEFORE, FAINT, Curve, Mark, Panel, series_picture

    def series(name: str, kind: Kind, color: str, marker: str, figure: Callable[[ShareFigures], float]) -> Curve:
        points: list[Mark] = []
        for k in _counts(report):
            # One trainer with its own loader is the case "alone".
            arm = named("alone" if k == 1 and kind == "separate" else kind, k)
            if arm in report.arms:
                spread = report.spread(arm, figure)
                points.append(Mark(k, spread.median, spread=(spread.least, spread.most)))
        return Curve(name, color, points, marker)

    figures: dict[str, Callable[[ShareFigures], float]] = {
        "Samples/s, all trainers together": lambda one: one.together,
        "CPU-seconds for 1,000 samples": lambda one: one.cpu_s_per_1000_samples,
        "Memory of all processes (PSS), MiB": lambda one: one.pss_bytes / 2**20,
    }
    panels: list[Panel] = []
    for title, figure in figures.items():
        lines = [
            series("a loader in each trainer", "separate", BEFORE, "s", figure),
            series("one feed for all", "shared", AFTER, "o", figure),
        ]
        if not panels:
            alone = report.spread(named("alone", 1), figure).median
            ideal = [Mark(k, alone * k) for k in _counts(report)]
            lines.append(Curve("trainers × the loader alone", FAINT, ideal, "", ":"))
        panels.append(Panel(title, lines, "trainers", counts=_counts(report)))
    settings, machine = report.settings, report.machine
    repeats = f"medians of {settings.repeats}, bars: least to most" if settings.repeats > 1 else "measured once"
    about = (
        f"{report.function}: {report.loader.description}; {_step(report)}; {repeats}. "
        f"{machine.cpu}, {machine.cores} cores, {machine.date[:10]}."
    )
    return series_picture(report.sentence, " ".join([about, *_notes(report)]), panels, columns=3)
