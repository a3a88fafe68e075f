"""An interval of time, and what is watched during it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from penstock.measure.pool import START_S


class Interval(msgspec.Struct, frozen=True):
    """The time in which one case is measured.

    Attributes:
        seconds: Counted.
        warm_up: Batches that each trainer takes before.
        step_s: Time that a trainer waits for each batch, in place of training on it.
        limit_s: In which all must be warm.
        fixed: Count what comes in exactly these seconds; otherwise from the first batch after
            the interval's start to the first after its end, which is finer where batches come evenly.
    """

    seconds: float
    warm_up: int
    step_s: float = 0.0
    limit_s: float = START_S
    fixed: bool = False


class Watch(Protocol):
    """Measures something besides, over one interval."""

    def begin(self) -> None: ...

    def end(self) -> None: ...
