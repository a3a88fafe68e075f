"""One measurement: some trainers, one way to feed them, one window of time."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from penstock.measure import processes
from penstock.measure.interval import Interval, Watch
from penstock.measure.pool import Member, MemberFailed

_SETTLE_S = 0.4
_ANSWER_S = 15.0


class Result(msgspec.Struct, frozen=True):
    """What one measurement gave.

    Attributes:
        workload: "JPEG", "1MB", ...
        arm: "alone" or "separate" (a ``DataLoader`` in each trainer), "penstock", "borrow",
            "tensorsocket", "copy" (each process copies warm memory, nothing is loaded).
        trainers: How many at once.
        finished: Whether every trainer got through; ``note`` says how far they got otherwise.
        samples_per_s, batches_per_s: Of each trainer.
        trainer_us_per_batch: CPU time of a trainer's own process.
        feeder_cpu_s, trainers_cpu_s: Per 1,000 samples delivered to all together, children included.
        latency_us: [median, 99th percentile] from publish to receipt, where it is known.
        pss_bytes: Of all processes together, at the window's end.
        copied_bytes_per_batch: What a trainer itself copied to its device, where that is counted.
    """

    workload: str
    arm: str
    trainers: int
    repeat: int
    finished: bool
    samples_per_s: tuple[float, ...] = ()
    batches_per_s: tuple[float, ...] = ()
    trainer_us_per_batch: float = 0.0
    feeder_cpu_s: float = 0.0
    trainers_cpu_s: float = 0.0
    latency_us: tuple[float, float] | None = None
    pss_bytes: int = 0
    copied_bytes_per_batch: float = 0.0
    note: str = ""

    @property
    def together(self) -> float:
        """Samples a second, of all trainers."""
        return sum(self.samples_per_s)

    @property
    def slowest(self) -> float:
        """Samples a second, of the slowest trainer."""
        return min(self.samples_per_s, default=0.0)


def measure(
    cell: Result,
    members: Sequence[Member],
    order: dict[str, Any],
    window: Interval,
    feeders: Sequence[int] = (),
    watches: Sequence[Watch] = (),
) -> Result:
    """Have the members take batches as ``order`` says, and fill in the cell.

    Args:
        feeders: Processes that load for them.

    Raises:
        MemberFailed: a process died or failed.
    """
    deadline = time.monotonic() + window.limit_s
    for member in members:
        member.tell({"do": "take", "warm_up": window.warm_up, "step_s": window.step_s, **order})
    try:
        for member in members:
            member.hear_of("ready", deadline)
    except MemberFailed:
        if time.monotonic() < deadline:
            raise
        return _unfinished(cell, [_progress(member) for member in members], window.limit_s)
    start = time.monotonic() + _SETTLE_S
    stop = start + window.seconds
    for member in members:
        member.tell({"do": "measure", "start": start, "stop": stop, "fixed": window.fixed})
    trainers = [member.pid for member in members]
    time.sleep(max(0.0, start - time.monotonic()))
    for watch in watches:
        watch.begin()
    feeder_cpu, trainer_cpu, began = processes.cpu_s(feeders), processes.cpu_s(trainers), time.monotonic()
    time.sleep(max(0.0, stop - time.monotonic()))
    feeder_cpu, trainer_cpu = processes.cpu_s(feeders) - feeder_cpu, processes.cpu_s(trainers) - trainer_cpu
    seconds = time.monotonic() - began
    for watch in watches:
        watch.end()
    answers = [member.hear_of("finished", stop + _ANSWER_S) for member in members]
    pss_bytes = sum(processes.memory(pid).total_bytes for pid in [*feeders, *trainers])
    for member in members:
        member.tell({"do": "stop"})
    if not all(answer["finished"] for answer in answers):
        return _unfinished(cell, [answer["taken"] for answer in answers], window.seconds)
    if not window.fixed:
        for member in members:
            member.hear_of("closed", time.monotonic() + _ANSWER_S)
    samples_per_s = tuple(answer["samples"] / answer["seconds"] for answer in answers)
    thousands = sum(samples_per_s) * seconds / 1000
    return msgspec.structs.replace(
        cell,
        finished=True,
        samples_per_s=samples_per_s,
        batches_per_s=tuple(answer["batches"] / answer["seconds"] for answer in answers),
        trainer_us_per_batch=1e6 * float(np.mean([a["cpu_s"] / a["batches"] for a in answers])),
        feeder_cpu_s=feeder_cpu / thousands,
        trainers_cpu_s=trainer_cpu / thousands,
        latency_us=_latency(answers),
        pss_bytes=pss_bytes,
        copied_bytes_per_batch=float(np.mean([a.get("copied_bytes", 0) / a["batches"] for a in answers])),
    )


def _latency(answers: list[dict[str, Any]]) -> tuple[float, float] | None:
    samples = [latency for answer in answers for latency in answer["latencies_s"]]
    if not samples:
        return None
    return float(np.median(samples)) * 1e6, float(np.percentile(samples, 99)) * 1e6


def _progress(member: Member) -> int:
    """How many batches a member has had that is not warm in time."""
    member.tell({"do": "measure", "start": math.inf, "stop": time.monotonic()})
    try:
        return int(member.hear_of("taken", time.monotonic() + _ANSWER_S)["taken"])
    except MemberFailed:
        return 0


def _unfinished(cell: Result, taken: list[int], seconds: float) -> Result:
    each = ", ".join(map(str, taken))
    note = f"did not finish in {seconds:.0f} s: {each} batches"
    return msgspec.structs.replace(cell, finished=False, note=note)
