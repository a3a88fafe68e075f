"""An interval of time, and what is watched during it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from penstock.bench.measure.pool import START_S


class Interval(msgspec.Struct, frozen=True):
    """The time in which one case is measured.

    Attributes:
        seconds: Length of the measured time.
        warm_up: Batches that each trainer takes before it.
        step_s: Time that a trainer waits for each batch, in place of training on it.
        limit_s: Time within which all trainers must be warm.
        fixed: Whether to count exactly these seconds; else from the first batch after the interval's
            start to the first after its end, which is finer if batches come evenly.
    """

    seconds: float
    warm_up: int
    step_s: float = 0.0
    limit_s: float = START_S
    fixed: bool = False


class Watch(Protocol):
    """Measures something else over an interval."""

    def begin(self) -> None: ...

    def end(self) -> None: ...
