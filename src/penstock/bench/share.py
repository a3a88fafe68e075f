"""Measures the user's loader alone, in each of several trainers, and behind one feed for all, in turn."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.basics.results import Tell
from penstock.bench.loop import LoopJob, failure, is_loader, made, plan_of
from penstock.bench.share_report import (
    Kind,
    ShareFigures,
    SharePlan,
    ShareReport,
    UsersLoader,
    compared,
    named,
    sentence,
)
from penstock.errors import PenstockError
from penstock.runs.machine import describe
from penstock.runs.store import Store
from penstock.runs.trial import WARM_BATCHES, Bounds, LoopRates, MeasuredTrial, TrialRunner
from penstock.sources.adapt import adapt

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
    loader = described(where)
    report = ShareReport(
        benchmark="bench share",
        machine=machine,
        settings=settings,
        function=where.rpartition(":")[2],
        loader=loader,
    )
    with tempfile.TemporaryDirectory(prefix="penstock-") as scratch, Store.open(Path(scratch)) as store:
        arms = {
            named(case.kind, case.trainers): partial(_figures, store, case, settings, where)
            for case in cases(settings.trainers, loader.workers)
        }
        report.measure(arms, range(settings.repeats), tell)
    report.comparisons = [compared(report, k) for k in dict.fromkeys(settings.trainers)]
    most = max(report.comparisons, key=lambda each: each.trainers)
    report.sentence = sentence(most, settings.step_ms)
    return report


def described(where: str) -> UsersLoader:
    """Describe what the function makes; what it prints goes to standard error."""
    with contextlib.redirect_stdout(sys.stderr):
        thing = made(where)
    source = adapt(thing, segments=1, seed=0)
    workers = thing.num_workers if is_loader(thing) else None
    return UsersLoader(source.description, workers, source.batch_size, source.samples)


def _figures(store: Store, case: ShareCase, settings: SharePlan, where: str, _: int) -> ShareFigures:
    """Measure one case, in new processes."""
    is_shared, words = case.kind == "shared", named(case.kind, case.trainers)
    job = LoopJob(where, feed="bench-share" * is_shared, window=settings.window, step_s=settings.step_ms / 1e3)
    each = [None] * case.trainers if is_shared or not case.workers else case.workers
    plans = [
        plan_of("penstock.bench.loop", msgspec.structs.replace(job, workers=workers), f"{place}")
        for place, workers in enumerate(each)
    ]
    runner = TrialRunner(store, plans, group=words, variables={"TMPDIR": str(store.folder)})
    bounds = Bounds(_PATIENCE_S, least_s=settings.seconds, most_s=settings.seconds)
    warm = max([WARM_BATCHES, *(2 * workers for workers in case.workers)])  # as many as workers have ready
    trial = MeasuredTrial(runner, bounds, warm=warm, drains=is_shared)
    ended = trial.run()
    if error := failure(store, ended, words):
        raise error
    loops = [LoopRates.of(store.series(run.id), trial.warm_batches, trial.since_s) for run in ended]
    known = [loop for loop in loops if loop is not None]
    if len(known) < len(loops):
        raise PenstockError(
            f"{words}: not each trainer had batches in {settings.seconds:g} s: make them smaller, or --seconds "
            "larger"
        )
    samples_per_s = tuple(loop.samples_per_s for loop in known)
    return ShareFigures(
        kind=case.kind,
        trainers=case.trainers,
        workers=sum(case.workers) if case.workers else None,
        samples_per_s=samples_per_s,
        batches_per_s=tuple(loop.samples_per_s / loop.batch for loop in known),
        cpu_s_per_1000_samples=1000 * runner.cpu_s / (sum(samples_per_s) * runner.seconds),
        pss_bytes=runner.memory_bytes,
    )
