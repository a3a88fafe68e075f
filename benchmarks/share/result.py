"""One measurement: a number of trainers, one way to feed them, one interval of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from benchmarks.measure.pool import MeasuredProcess
from benchmarks.measure.rates import Interval, IntervalWatch, Unfinished, measured


class Result(msgspec.Struct, frozen=True):
    """The result of one measurement; the figures are those of ``Rates``."""

    workload: str  # "JPEG", "1MB", ..
    arm: str
    """"alone" or "separate" (a ``DataLoader`` in each trainer), "penstock", "borrow", "tensorsocket", "copy" (each
    process copies warm memory, nothing is loaded)."""
    trainers: int  # number of trainers at once
    repeat: int
    finished: bool  # whether every trainer finished; else ``note`` says how far they got
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
        """Samples per second of all trainers together."""
        return sum(self.samples_per_s)

    @property
    def slowest(self) -> float:
        """Samples per second of the slowest trainer."""
        return min(self.samples_per_s, default=0.0)


def measure(
    result: Result,
    members: Sequence[MeasuredProcess],
    order: dict[str, Any],
    interval: Interval,
    feeders: Sequence[int] = (),
    watches: Sequence[IntervalWatch] = (),
) -> Result:
    """Let the members take batches as ``order`` says, and fill in the result."""
    try:
        rates = measured(members, [order] * len(members), interval, feeders, watches)
    except Unfinished as error:
        return msgspec.structs.replace(result, finished=False, note=str(error))
    return msgspec.structs.replace(result, finished=True, **msgspec.structs.asdict(rates))
