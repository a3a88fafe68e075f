"""What ``penstock bench share`` measures: its settings, and the cases of one repeat in their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

from penstock.errors import BadSetting
from penstock.feed.settings import DEFAULT_WINDOW, bytes_from

MOST_TRAINERS = 64
_WARM_UP = 4

Arm = Literal["alone", "separate", "shared"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How the benchmark runs.

    Attributes:
        trainers: Numbers of trainers at once, one per case.
        step_ms: Time that a trainer waits for each batch, in place of training on it.
        seconds: Measured time of each case.
        window: Size of the feed's ring.
    """

    trainers: tuple[int, ...] = (1, 2, 4, 8)
    step_ms: float = 0.0
    seconds: float = 4.0
    repeats: int = 3
    window: str = DEFAULT_WINDOW
    warm_up_batches: int = _WARM_UP
    quick: bool = False

    def quickly(self) -> Settings:
        """Reduce to the first few cases, each once and short: a smoke run."""
        few = tuple(k for k in self.trainers if k <= 2) or self.trainers[:1]
        return msgspec.structs.replace(self, trainers=few, repeats=1, seconds=min(self.seconds, 1.0), quick=True)

    def check(self) -> None:
        """Check the numbers.

        Raises:
            BadSetting: one is out of range.
        """
        if not self.trainers or not all(1 <= k <= MOST_TRAINERS for k in self.trainers):
            given = ",".join(map(str, self.trainers))
            raise BadSetting(f"--trainers {given}: give numbers between 1 and {MOST_TRAINERS}, such as 1,2,4,8")
        for name, value, least, most in (
            ("repeats", self.repeats, 1, 1000),
            ("seconds", self.seconds, 0.2, 3600),
            ("step-ms", self.step_ms, 0, 60_000),
        ):
            if not least <= value <= most:  # NaN is not
                raise BadSetting(f"--{name} {value:g}: from {least:g} to {most:,}")
        bytes_from(self.window)


class Case(NamedTuple):
    """A number of trainers at once, and what feeds them.

    Attributes:
        arm: "alone" (one trainer with the whole loader), "separate" (a loader in each trainer),
            "shared" (all on one feed).
        workers: Workers of each loader; empty for a source that has none.
    """

    arm: Arm
    trainers: int
    workers: tuple[int, ...]

    @property
    def words(self) -> str:
        if self.arm == "alone":
            return "the loader alone"
        fed_by = "one feed" if self.arm == "shared" else "a loader each"
        return f"{self.trainers} trainer{'s' * (self.trainers > 1)}, {fed_by}"


def cases(trainers: tuple[int, ...], workers: int | None) -> Iterator[Case]:
    """Yield the cases of one repeat; those to be compared are neighbours.

    Args:
        workers: Workers of the user's loader; None for a source that has none.
    """
    whole = () if workers is None else (workers,)
    yield Case("alone", 1, whole)
    for k in dict.fromkeys(trainers):
        if k > 1:
            yield Case("separate", k, () if workers is None else split(workers, k))
        yield Case("shared", k, whole)


def split(workers: int, trainers: int) -> tuple[int, ...]:
    """Split a loader's workers among the loaders of several trainers: as many in all, at least one each.

    A loader without workers stays without in each trainer.
    """
    if workers == 0:
        return (0,) * trainers
    return tuple(max(1, workers * (i + 1) // trainers - workers * i // trainers) for i in range(trainers))
