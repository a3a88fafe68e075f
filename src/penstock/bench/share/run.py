"""Measures the user's loader alone, in each of several trainers, and behind one feed for all, in turn."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from penstock.basics.results import Tell
from penstock.bench.measure.family import family
from penstock.bench.measure.pool import START_S, MeasuredProcess, MemberFailed, ProcessPool, users_error
from penstock.bench.measure.rates import Interval, Unfinished, measured
from penstock.bench.share.child import UsersLoader
from penstock.bench.share.report import Kind, ShareFigures, SharePlan, ShareReport, compared, named, sentence
from penstock.errors import PenstockError
from penstock.feed.endpoint import Endpoint
from penstock.runs.machine import describe

_PATIENCE_S = 600.0  # a loader may look at its files for minutes


class ShareCase(NamedTuple):
    """A number of trainers at once, and what feeds them."""

    kind: Kind
    """One trainer with the whole loader ("alone"), a loader in each ("separate"), or one feed ("shared")."""
    trainers: int
    workers: tuple[int, ...]  # workers of each loader; empty for a source that has none


def cases(trainers: tuple[int, ...], workers: int | None) -> Iterator[ShareCase]:
    """Yield the cases of one repeat; those to be compared are neighbours.

    Args:
        workers: Workers of the user's loader; None for a source that has none.
    """
    whole = () if workers is None else (workers,)
    yield ShareCase("alone", 1, whole)
    for k in dict.fromkeys(trainers):
        if k > 1:
            yield ShareCase("separate", k, () if workers is None else split(workers, k))
        yield ShareCase("shared", k, whole)


def split(workers: int, trainers: int) -> tuple[int, ...]:
    """Split a loader's workers among the loaders of several trainers: as many in all, at least one each.

    If a loader has no workers, neither have those of the trainers.

    >>> split(8, 3), split(2, 3)
    ((2, 3, 3), (1, 1, 1))
    """
    if workers == 0:
        return (0,) * trainers
    return tuple(max(1, workers * (i + 1) // trainers - workers * i // trainers) for i in range(trainers))


def run(settings: SharePlan, where: str, tell: Tell) -> ShareReport:
    """Measure every case ``settings.repeats`` times.

    Args:
        where: The function that makes the loader, as ``FILE.py:FUNCTION``.
    """
    settings.check()
    machine = describe()
    # Ends what a killed trainer leaves, such as its loader's workers.
    with ExitStack() as stack:
        stack.callback(Endpoint(_feed()).sweep)  # what a killed feeder leaves
        stack.enter_context(family())
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        tell(0, 0, "looking at the loader")
        report = ShareReport(
            benchmark="bench share",
            machine=machine,
            settings=settings,
            function=where.rpartition(":")[2],
            loader=_looked_at(scratch, where),
        )
        arms = {
            named(case.kind, case.trainers): partial(_figures, scratch, case, settings, where)
            for case in cases(settings.trainers, report.loader.workers)
        }
        report.measure(arms, range(settings.repeats), tell)
    report.comparisons = [compared(report, k) for k in dict.fromkeys(settings.trainers)]
    most = max(report.comparisons, key=lambda each: each.trainers)
    report.sentence = sentence(most, settings.step_ms)
    return report


def _looked_at(scratch: Path, where: str) -> UsersLoader:
    with ProcessPool(scratch) as pool:
        try:
            (member,) = _trainers(pool, 1)
            member.send({"do": "describe", "where": where})
            return msgspec.convert(member.hear_of("loader", time.monotonic() + _PATIENCE_S)["loader"], UsersLoader)
        except MemberFailed as error:
            raise users_error(error, f"{where} could not be looked at", pool) from None


def _figures(scratch: Path, case: ShareCase, settings: SharePlan, where: str, _: int) -> ShareFigures:
    """Measure one case, in new processes."""
    interval = Interval(settings.seconds, settings.warm_up_batches, settings.step_ms / 1e3, limit_s=_PATIENCE_S)
    words = named(case.kind, case.trainers)
    with ProcessPool(scratch) as pool:
        try:
            trainers = _trainers(pool, case.trainers)
            feeders: list[MeasuredProcess] = []
            orders: list[dict[str, Any]] = [
                {"where": where, "workers": workers} for workers in case.workers or (None,) * case.trainers
            ]
            if case.kind == "shared":
                feeders = pool.start(_command("feeder"))
                order = {"where": where, "feed": _feed(), "window": settings.window, "trainers": case.trainers}
                feeders[0].send(order)
                feeders[0].hear_of("ready", time.monotonic() + _PATIENCE_S)
                orders = [{"feed": _feed()}] * case.trainers
            rates = measured(trainers, orders, interval, [feeder.pid for feeder in feeders])
        except Unfinished as error:
            raise PenstockError(
                f"{words}: {error}. Each trainer is to have {interval.warm_up} batches within "
                f"{interval.limit_s:.0f} s, and more within the {interval.seconds:g} s that are counted: make "
                "batches smaller, or --seconds larger"
            ) from None
        except MemberFailed as error:
            raise users_error(error, words, pool) from None
    return ShareFigures(
        kind=case.kind,
        trainers=case.trainers,
        workers=sum(case.workers) if case.workers else None,
        samples_per_s=rates.samples_per_s,
        batches_per_s=rates.batches_per_s,
        cpu_s_per_1000_samples=rates.feeder_cpu_s + rates.trainers_cpu_s,
        pss_bytes=rates.pss_bytes,
    )


def _feed() -> str:
    """Name the feed so that two benchmarks at once do not share it."""
    return f"bench-share/{os.getpid()}"


def _trainers(pool: ProcessPool, count: int) -> list[MeasuredProcess]:
    members = pool.start(_command(), count)
    for member in members:
        member.hear_of("pid", time.monotonic() + START_S)
    return members


def _command(*words: Literal["feeder"]) -> list[str]:
    """Return the command of a measured process; -P leaves the working directory out of its import path."""
    return [sys.executable, "-P", "-m", "penstock.bench.share.child", *words]
