"""Measures trainers over one interval of time: rates, CPU time, memory."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from benchmarks.measure.pool import START_S, MeasuredProcess, MemberFailed

from penstock.linux.process import cpu_s, pss_bytes, with_descendants


class Interval(msgspec.Struct, frozen=True):
    """The time in which one case is measured."""

    seconds: float  # length of the measured time
    warm_up: int  # batches that each trainer takes before it
    step_s: float = 0.0  # time that a trainer waits for each batch, in place of training on it
    limit_s: float = START_S  # time within which all trainers must be warm
    fixed: bool = False
    """Whether to count exactly these seconds; else from the first batch after the interval's start to the first
    after its end, which is finer if batches come evenly."""


class IntervalWatch(Protocol):
    """Measures something else over an interval."""

    def begin(self) -> None: ...

    def end(self) -> None: ...


_SETTLE_S = 0.4
_ANSWER_S = 60.0


class Unfinished(MemberFailed):
    """Raised when trainers did not finish an interval; the message says how many batches each has had."""


class Rates(msgspec.Struct, frozen=True):
    """What trainers took in one interval."""

    samples_per_s: tuple[float, ...]  # samples per second of each trainer
    batches_per_s: tuple[float, ...]  # batches per second of each trainer
    trainer_us_per_batch: float  # CPU time per batch of a trainer's own process
    feeder_cpu_s: float  # CPU time of feeders, children included, per 1,000 samples delivered to all together
    trainers_cpu_s: float  # CPU time of trainers, children included, per 1,000 samples delivered to all together
    latency_us: tuple[float, float] | None
    """(median, 99th percentile) from publishing to receipt; None if not known."""
    pss_bytes: int  # memory of all processes together at the interval's end; a shared page counts once
    copied_bytes_per_batch: float  # bytes that a trainer itself copied to its device; 0 if not counted


def measured(
    members: Sequence[MeasuredProcess],
    orders: Sequence[dict[str, Any]],
    interval: Interval,
    feeders: Sequence[int] = (),  # pids of processes that load for the members
    watches: Sequence[IntervalWatch] = (),
) -> Rates:
    """Let each member take batches by its order, and measure them."""
    deadline = time.monotonic() + interval.limit_s
    for member, order in zip(members, orders, strict=True):
        member.send({"do": "take", "warm_up": interval.warm_up, "step_s": interval.step_s, **order})
    try:
        for member in members:
            member.hear_of("ready", deadline)
    except MemberFailed:
        if time.monotonic() < deadline:
            raise
        raise _unfinished([_progress(member) for member in members], interval.limit_s) from None
    start = time.monotonic() + _SETTLE_S
    stop = start + interval.seconds
    for member in members:
        member.send({"do": "measure", "start": start, "stop": stop, "fixed": interval.fixed})
    trainers = [member.pid for member in members]
    time.sleep(max(0.0, start - time.monotonic()))
    for watch in watches:
        watch.begin()
    feeder_cpu, trainer_cpu, began = _cpu_s(feeders), _cpu_s(trainers), time.monotonic()
    time.sleep(max(0.0, stop - time.monotonic()))
    feeder_cpu, trainer_cpu = _cpu_s(feeders) - feeder_cpu, _cpu_s(trainers) - trainer_cpu
    seconds = time.monotonic() - began
    for watch in watches:
        watch.end()
    answers = [member.hear_of("finished", stop + _ANSWER_S) for member in members]
    memory = sum(pss_bytes(each) for each in with_descendants([*feeders, *trainers]))
    for member in members:
        member.send({"do": "stop"})
    if not all(answer["finished"] for answer in answers):
        raise _unfinished([answer["taken"] for answer in answers], interval.seconds)
    if not interval.fixed:
        for member in members:
            member.hear_of("closed", time.monotonic() + _ANSWER_S)
    samples_per_s = tuple(answer["samples"] / answer["seconds"] for answer in answers)
    thousands = sum(samples_per_s) * seconds / 1000
    return Rates(
        samples_per_s=samples_per_s,
        batches_per_s=tuple(answer["batches"] / answer["seconds"] for answer in answers),
        trainer_us_per_batch=1e6 * float(np.mean([a["cpu_s"] / a["batches"] for a in answers])),
        feeder_cpu_s=feeder_cpu / thousands,
        trainers_cpu_s=trainer_cpu / thousands,
        latency_us=_latency(answers),
        pss_bytes=memory,
        copied_bytes_per_batch=float(np.mean([a.get("copied_bytes", 0) / a["batches"] for a in answers])),
    )


def _cpu_s(pids: Sequence[int]) -> float:
    return cpu_s(with_descendants(pids))


def _latency(answers: list[dict[str, Any]]) -> tuple[float, float] | None:
    samples = [latency for answer in answers for latency in answer["latencies_s"]]
    if not samples:
        return None
    return float(np.median(samples)) * 1e6, float(np.percentile(samples, 99)) * 1e6


def _progress(member: MeasuredProcess) -> int:
    """Ask a member that was not warm in time how many batches it has had."""
    member.send({"do": "measure", "start": math.inf, "stop": time.monotonic()})
    try:
        return int(member.hear_of("taken", time.monotonic() + _ANSWER_S)["taken"])
    except MemberFailed:
        return 0


def _unfinished(taken: list[int], seconds: float) -> Unfinished:
    return Unfinished(f"did not finish in {seconds:.0f} s: {', '.join(map(str, taken))} batches")
