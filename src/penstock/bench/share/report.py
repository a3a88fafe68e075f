"""The results, their comparison, and the sentence that sums it up."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import msgspec

from penstock.bench.measure.spread import Spread
from penstock.bench.share.plan import Arm, Settings
from penstock.bench.share.source import Loader
from penstock.runs.machine import Machine

_SAME = 0.05
_KEEPS_UP = 0.9
_MORE = "Run with -k 2 or more to see what sharing brings."


class Result(msgspec.Struct, frozen=True):
    """The result of one case in one repeat.

    Attributes:
        workers: Loader workers of all processes together; None for a source that has none.
        samples_per_s: Samples per second of each trainer.
        batches_per_s: Batches per second of each trainer.
        cpu_s_per_1000_samples: CPU time of all processes, for 1,000 samples delivered to one trainer.
        pss_bytes: Memory of all processes; a page that n share counts once.
    """

    arm: Arm
    trainers: int
    workers: int | None
    repeat: int
    samples_per_s: tuple[float, ...]
    batches_per_s: tuple[float, ...]
    cpu_s_per_1000_samples: float
    pss_bytes: int

    @property
    def slowest(self) -> float:
        """Samples per second of the slowest trainer."""
        return min(self.samples_per_s)

    @property
    def together(self) -> float:
        """Samples per second of all trainers together."""
        return sum(self.samples_per_s)


class Comparison(msgspec.Struct, frozen=True):
    """Ratios of one feed to separate loaders (to the loader alone, for one trainer), each within a repeat.

    Attributes:
        together: Ratio of samples per second, all trainers together.
        cpu: Ratio of CPU time per sample.
        memory: Ratio of PSS.
        steps_kept: Batches per second of the slowest trainer with its own loader, as a part of what ``step_ms``
            allows; None without steps.
    """

    trainers: int
    together: Spread
    cpu: Spread
    memory: Spread
    steps_kept: float | None


class Report(msgspec.Struct, kw_only=True):
    """Everything that one run measured, as it is saved.

    Attributes:
        function: The user's function that makes the loader.
    """

    benchmark: str = "bench share"
    version: int = 1
    machine: Machine
    settings: Settings
    function: str
    loader: Loader
    results: list[Result]
    comparisons: list[Comparison]
    sentence: str

    def of(self, arm: Arm, trainers: int) -> list[Result]:
        """Return the repeats of one case."""
        return of_case(self.results, arm, trainers)


def of_case(results: Sequence[Result], arm: Arm, trainers: int) -> list[Result]:
    return [result for result in results if (result.arm, result.trainers) == (arm, trainers)]


def compared(results: Sequence[Result], trainers: int, step_ms: float) -> Comparison:
    """Compare a feed of so many trainers with separate loaders, or with the loader alone."""
    own = of_case(results, "separate" if trainers > 1 else "alone", trainers)
    shared = of_case(results, "shared", trainers)
    own_of = {result.repeat: result for result in own}

    def ratio(figure: Callable[[Result], float]) -> Spread:
        return Spread.of([figure(one) / figure(own_of[one.repeat]) for one in shared])

    kept = statistics.median(min(one.batches_per_s) for one in own) * step_ms / 1e3 if step_ms else None
    return Comparison(
        trainers,
        ratio(lambda one: one.together),
        ratio(lambda one: one.cpu_s_per_1000_samples),
        ratio(lambda one: one.pss_bytes),
        kept,
    )


def sentence(comparison: Comparison, step_ms: float) -> str:
    """Say what sharing brings with so many trainers."""
    speed, cpu = comparison.together, comparison.cpu.median
    gives = f"gives {_times(speed)} times the samples/s of"
    at = f"with {_short(cpu)} times the CPU time per sample"
    if comparison.trainers == 1:
        return f"With 1 trainer, a feed {gives} the loader alone, {at}. {_MORE}"
    with_k = f"ith {comparison.trainers} trainers, one feed"
    if speed.median >= 1 + _SAME and speed.least > 1:
        return f"W{with_k} {gives} separate loaders, {at}."
    if speed.median <= 1 - _SAME and speed.most < 1:
        return f"Sharing slows this down: w{with_k} {gives} separate loaders, {at}."
    kept = comparison.steps_kept
    why = ""
    if kept is not None and kept >= _KEEPS_UP:
        why = f" Loading is not what limits training here: with steps of {step_ms:g} ms, separate loaders keep up."
    if cpu <= 1 - 2 * _SAME:
        return f"Sharing saves CPU time here, and brings no speed: w{with_k} {gives} separate loaders, {at}.{why}"
    return f"Sharing brings nothing here: w{with_k} {gives} separate loaders, {at}.{why}"


def _times(ratio: Spread) -> str:
    if ratio.least == ratio.most:
        return _short(ratio.median)
    return f"{_short(ratio.median)} ({_short(ratio.least)}–{_short(ratio.most)})"


def _short(value: float) -> str:
    return f"{value:.1f}" if value >= 1.95 else f"{value:.2f}"
