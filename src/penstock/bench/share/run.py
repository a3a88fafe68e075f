"""Measures the user's loader alone, in each of several trainers, and behind one feed for all, in turn."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from penstock import errors
from penstock.bench.measure.family import family
from penstock.bench.measure.interval import Interval
from penstock.bench.measure.pool import START_S, Member, MemberFailed, ProcessPool
from penstock.bench.measure.progress import Tell
from penstock.bench.measure.rates import Unfinished, measured
from penstock.bench.share.feeder import Feeding
from penstock.bench.share.plan import Case, Settings, cases
from penstock.bench.share.report import Report, Result, compared, sentence
from penstock.bench.share.source import Loader
from penstock.errors import PenstockError, SourceError
from penstock.feed.endpoint import Endpoint
from penstock.feed.launch.function import FunctionFailed
from penstock.runs.machine import describe

_PATIENCE_S = 600.0  # a loader may look at its files for minutes


def run(settings: Settings, where: str, tell: Tell) -> Report:
    """Measure every case ``settings.repeats`` times.

    Args:
        where: The function that makes the loader, as ``FILE.py:FUNCTION``.

    Raises:
        BadSetting: a setting is out of range, or there is no such function.
        FunctionFailed: the file or the function raised.
        SourceError: the loader raised, or gives no batches.
        PenstockError: a process died, or the loader gives batches too rarely.
    """
    settings.check()
    machine = describe()
    results: list[Result] = []
    # Ends what a killed trainer leaves, such as its loader's workers.
    with ExitStack() as stack:
        stack.callback(Endpoint(_feed()).sweep)  # what a killed feeder leaves
        stack.enter_context(family())
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-"))
        tell(0, 0, "looking at the loader")
        loader = _looked_at(Path(scratch), where)
        planned = list(cases(settings.trainers, loader.workers))
        for repeat in range(settings.repeats):
            for case in planned if repeat % 2 == 0 else planned[::-1]:
                tell(len(results), len(planned) * settings.repeats, case.words)
                results.append(_result(Path(scratch), case, repeat, settings, where))
    comparisons = [compared(results, k, settings.step_ms) for k in dict.fromkeys(settings.trainers)]
    most = max(comparisons, key=lambda comparison: comparison.trainers)
    return Report(
        machine=machine,
        settings=settings,
        function=where.rpartition(":")[2],
        loader=loader,
        results=results,
        comparisons=comparisons,
        sentence=sentence(most, settings.step_ms),
    )


def _looked_at(scratch: Path, where: str) -> Loader:
    with ProcessPool(scratch) as pool:
        try:
            (member,) = _started(pool, "trainer")
            member.tell({"do": "describe", "where": where})
            return msgspec.convert(member.hear_of("loader", time.monotonic() + _PATIENCE_S)["loader"], Loader)
        except MemberFailed as error:
            raise _of_user(error, f"{where} could not be looked at", pool) from None


def _result(scratch: Path, case: Case, repeat: int, settings: Settings, where: str) -> Result:
    """Measure one case, in new processes."""
    interval = Interval(settings.seconds, settings.warm_up_batches, settings.step_ms / 1e3, limit_s=_PATIENCE_S)
    with ProcessPool(scratch) as pool:
        try:
            trainers = _started(pool, "trainer", case.trainers)
            feeders: list[Member] = []
            orders: list[dict[str, Any]] = [
                {"where": where, "workers": workers} for workers in case.workers or (None,) * case.trainers
            ]
            if case.arm == "shared":
                feeders = pool.start(_command("feeder"))
                feeding = Feeding(where, _feed(), settings.window, case.trainers)
                feeders[0].tell(msgspec.to_builtins(feeding))
                feeders[0].hear_of("ready", time.monotonic() + _PATIENCE_S)
                orders = [{"feed": _feed()}] * case.trainers
            rates = measured(trainers, orders, interval, [feeder.pid for feeder in feeders])
        except Unfinished as error:
            raise PenstockError(
                f"{case.words}: {error}. Each trainer is to have {interval.warm_up} batches within "
                f"{interval.limit_s:.0f} s, and more within the {interval.seconds:g} s that are counted: make "
                "batches smaller, or --seconds larger"
            ) from None
        except MemberFailed as error:
            raise _of_user(error, case.words, pool) from None
    return Result(
        arm=case.arm,
        trainers=case.trainers,
        workers=sum(case.workers) if case.workers else None,
        repeat=repeat,
        samples_per_s=rates.samples_per_s,
        batches_per_s=rates.batches_per_s,
        cpu_s_per_1000_samples=rates.feeder_cpu_s + rates.trainers_cpu_s,
        pss_bytes=rates.pss_bytes,
    )


def _feed() -> str:
    """Name the feed so that two benchmarks at once do not share it."""
    return f"bench-share/{os.getpid()}"


def _started(pool: ProcessPool, module: str, count: int = 1) -> list[Member]:
    members = pool.start(_command(module), count)
    for member in members:
        member.hear_of("pid", time.monotonic() + START_S)
    return members


def _command(module: str) -> list[str]:
    """Return the command of a measured process; -P keeps the working directory off its import path."""
    return [sys.executable, "-P", "-m", f"penstock.bench.share.{module}"]


def _of_user(error: MemberFailed, what: str, pool: ProcessPool) -> Exception:
    """Turn a measured process's error into one to raise here; or say that it died, with its last words."""
    if error.kind == FunctionFailed.__name__:
        return FunctionFailed(error.message, error.traceback_text)
    kind = getattr(errors, error.kind, None) if error.kind else None
    if kind is not None and issubclass(kind, SourceError):
        return kind(error.message, error.traceback_text)
    if kind is not None:
        return kind(error.message)
    said = pool.errors().strip()
    return PenstockError(f"{what}: {error}" + (f". Its last words:\n{said}" if said else ""))
