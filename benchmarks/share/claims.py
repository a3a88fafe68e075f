"""What Penstock claims, each claim beside its measurement; every report has all of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
from benchmarks.share.extras import CROWD, MemoryUse
from benchmarks.share.result import Result
from benchmarks.share.run import Report

_TRAINER_BYTES = 30e6
_IMPORT_S = 0.1


class Claim(msgspec.Struct, frozen=True):
    """One claim."""

    name: str  # short name that does not change
    claim: str  # the claim in words
    target: float  # what the measurement must reach, or not exceed
    unit: str
    at_least: bool  # whether the target is a minimum; else it is a maximum
    measured: float | None  # median over the repeats; None if this run did not measure it
    spread: tuple[float, float] | None  # (least, most) over the repeats
    met: bool | None
    note: str = ""


def claims(report: Report) -> list[Claim]:
    """Compute all claims, in the order of the published table."""
    return list(_Claims(report).rows())


class _Claims:
    def __init__(self, report: Report) -> None:
        self._report = report
        self._results = {(c.workload, c.arm, c.trainers, c.repeat): c for c in report.results if c.finished}
        self._repeats = range(report.settings.repeats)

    def rows(self) -> Iterator[Claim]:
        yield from self._jpeg()
        yield from self._blocks()
        yield from self._memory()
        yield from self._others()

    def _jpeg(self) -> Iterator[Claim]:
        def against_alone(arm: str, trainers: int) -> list[float]:
            return self._over_repeats(
                ("JPEG", arm, trainers), ("JPEG", "alone", 1), lambda one, alone: one.slowest / alone.slowest
            )

        for trainers, target in ((1, 0.97), (2, 0.97), (4, 0.97), (8, 0.93)):
            what = f"JPEG, K={trainers}: slowest trainer against a DataLoader alone"
            yield least(f"jpeg-each-{trainers}", what, target, "", against_alone("penstock", trainers))
        what = "JPEG, K=8, borrow=True: slowest trainer against a DataLoader alone"
        yield least("jpeg-each-8-borrow", what, 0.97, "", against_alone("borrow", 8))
        for trainers, target in ((4, 3.8), (8, 7.2)):
            values = self._over_repeats(
                ("JPEG", "penstock", trainers),
                ("JPEG", "separate", trainers),
                lambda one, other: one.together / other.together,
            )
            what = f"JPEG, K={trainers}: together against separate DataLoaders"
            yield least(f"jpeg-together-{trainers}", what, target, "x", values)
        for trainers in (2, 4, 8):
            values = self._over_repeats(
                ("JPEG", "penstock", trainers),
                ("JPEG", "penstock", 1),
                lambda one, single: one.trainers * _cpu_s(one) / _cpu_s(single),
            )
            what = f"JPEG, K={trainers}: CPU time to load one sample for all runs, relative to one run"
            yield most(f"jpeg-cpu-{trainers}", what, 1.1, "", values)

    def _blocks(self) -> Iterator[Claim]:
        copies = {one["threads"]: one for one in self._report.ring_copy}
        for threads, rates in sorted(copies.items()):
            values = [r / t for r, t in zip(rates["ring_GBps"], rates["torch_GBps"], strict=True)]
            what = f"10MB: copy into the ring against torch's in {threads} thread{'s' * (threads > 1)}"
            claim = least("ring-copy" if threads == 1 else "ring-copy-threads", what, 0.8, "", values)
            # torch's threads take the other cores, which loading needs: shown, not claimed.
            yield claim if threads == 1 else msgspec.structs.replace(claim, met=None, note="for comparison only")
        if not copies:
            yield least("ring-copy", "10MB: copy into the ring against torch's plain copy", 0.8, "", [])
        values = self._over_repeats(
            ("10MB", "penstock", 4), ("10MB", "copy", 4), lambda one, copy: one.together / copy.together
        )
        what = "10MB, K=4: private copies together against 4 processes' plain copies"
        yield least("private-copies", what, 0.7, "", values)
        yield self._beyond_copy()
        for size, arm, trainers, target in (
            ("10MB", "borrow", 8, 800.0),
            ("128KB", "penstock", 8, 1500.0),
            ("128KB", "penstock", 1, 6000.0),
        ):
            results = self._over_repeats((size, arm, trainers), None, lambda one, _: min(one.batches_per_s))
            how = "borrow=True" if arm == "borrow" else "private copies"
            what = f"{size}, K={trainers}, {how}: slowest trainer"
            yield least(f"blocks-{size}-{trainers}", what, target, "blocks/s", results)

    def _beyond_copy(self) -> Claim:
        worst: list[float] = []
        for trainers in self._report.settings.trainers:
            values = self._over_repeats(
                ("128KB", "penstock", trainers),
                ("128KB", "copy", trainers),
                lambda one, copy: one.trainer_us_per_batch - copy.trainer_us_per_batch,
            )
            if values and (not worst or statistics.median(values) > statistics.median(worst)):
                worst = values
        what = "128KB: trainer's CPU per batch beyond the copy, worst K"
        return most("trainer-cpu", what, 100.0, "us", worst)

    def _memory(self) -> Iterator[Claim]:
        uses = self._report.memory
        what = "memory of the window in all processes together, relative to its size, worst K"
        yield most("memory-window", what, 1.0, "", _worst(uses, lambda use: use.ring_bytes / use.window_bytes))
        what = "memory of a trainer beyond its batches and the process without a feed"
        beyond = _worst(uses, lambda use: use.beyond_batches_bytes / 1e6)
        yield most("memory-trainer", what, _TRAINER_BYTES / 1e6, "MB", beyond)

    def _others(self) -> Iterator[Claim]:
        crowd = self._report.crowd
        values = [float(crowd.finished)] if crowd is not None else []
        claim = least("crowd", f"{CROWD} trainers at once: finished, each sample once", CROWD, "trainers", values)
        if crowd is not None:
            claim = msgspec.structs.replace(
                claim,
                met=crowd.exact if crowd.trainers == CROWD else None,
                note=f"{crowd.lost} lost, {crowd.repeated} repeated",
            )
        yield claim
        imports = self._report.imports
        claim = most("import", "import penstock", _IMPORT_S, "s", [] if imports is None else imports.seconds)
        if imports is not None and imports.heavy:
            claim = msgspec.structs.replace(claim, met=False, note="imports " + ", ".join(imports.heavy))
        yield claim

    def _over_repeats(
        self,
        which: tuple[str, str, int],
        other: tuple[str, str, int] | None,
        value: Callable[[Result, Result], float],
    ) -> list[float]:
        """Compute a value of two results of one repeat, for each repeat that has both."""
        values: list[float] = []
        for repeat in self._repeats:
            one = self._results.get((*which, repeat))
            two = one if other is None else self._results.get((*other, repeat))
            if one is not None and two is not None:
                values.append(value(one, two))
        return values


def _cpu_s(result: Result) -> float:
    return result.feeder_cpu_s + result.trainers_cpu_s


def _worst(uses: Iterable[MemoryUse], value: Callable[[MemoryUse], float]) -> list[float]:
    values = [value(use) for use in uses]
    return [max(values)] if values else []


def least(name: str, claim: str, target: float, unit: str, values: Sequence[float]) -> Claim:
    """Judge a claim that is met from ``target`` up; without ``values`` there is no verdict."""
    return _claim(name, claim, target, unit, values, at_least=True)


def most(name: str, claim: str, target: float, unit: str, values: Sequence[float]) -> Claim:
    """Judge a claim that is met up to ``target``; without ``values`` there is no verdict."""
    return _claim(name, claim, target, unit, values, at_least=False)


def _claim(name: str, claim: str, target: float, unit: str, values: Sequence[float], *, at_least: bool) -> Claim:
    if not values:
        return Claim(name, claim, target, unit, at_least, None, None, None, "not measured in this run")
    median = statistics.median(values)
    met = median >= target if at_least else median <= target
    return Claim(name, claim, target, unit, at_least, median, (min(values), max(values)), met)
