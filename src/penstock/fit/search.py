"""Which settings are tried, in which order, and which of them is chosen: rules without a clock or a process.

A search is given what each trial found, and yields the next setting to be tried.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from penstock.fit.trial import Trial

CLOSE = 0.05
"""Settings whose throughput differs by less than this part are as good as each other."""
_MAYBE = 0.1
"""Those that are this close to the best are tried a second time: their throughput is the mean then."""
_WORSE = 0.8
"""Below the first size, others are tried while they have at least this part of the best: some curves have dips."""
_BISECTIONS = 3
_FIRST_SIZE = 8
_PATIENCE = 3
"""Doublings in a row that bring nothing: one trial may be a tenth off on a machine that others use."""
RESERVE = 0.1
"""Part of the memory that the largest batch size leaves."""

Search = Generator[int, Trial, object]


class Tried:
    """What was tried so far.

    Args:
        trials: In the order in which they were tried; of one setting there may be several.
    """

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.trials = list(trials)

    def within(self, most_bytes: float) -> Tried:
        """Return those that take no more memory."""
        return Tried([each for each in self.trials if each.failed or each.memory_bytes <= most_bytes])

    @property
    def good(self) -> list[Trial]:
        """One for each setting that can be used, by rising settings: means of what was measured there."""
        values = sorted({each.value for each in self.trials if not each.failed})
        return [self._mean([each for each in self.trials if each.value == value]) for value in values]

    @property
    def best(self) -> Trial | None:
        return max(self.good, key=lambda each: each.samples_per_s, default=None)

    @property
    def chosen(self) -> Trial | None:
        """The smallest setting whose throughput is close to the best."""
        best = self.best
        return best and next(each for each in self.good if each.samples_per_s >= (1 - CLOSE) * best.samples_per_s)

    def to_confirm(self) -> list[int]:
        """Settings that are to be tried once more before one is chosen."""
        if (best := self.best) is None:
            return []
        tried = [each.value for each in self.trials]
        close = [each.value for each in self.good if each.samples_per_s >= (1 - _MAYBE) * best.samples_per_s]
        return [value for value in dict.fromkeys([*close[:2], best.value]) if tried.count(value) == 1]

    @staticmethod
    def _mean(trials: Sequence[Trial]) -> Trial:
        good = [each for each in trials if not each.failed]
        return replace(
            max(good, key=lambda each: each.memory_bytes),
            samples_per_s=sum(each.samples_per_s for each in good) / len(good),
            waiting=sum(each.waiting for each in good) / len(good),
        )


def growing(values: Iterable[int], best: float = 0.0, *, patience: int = 2) -> Generator[int, Trial, int | None]:
    """Try settings that grow until throughput no longer grows by ``CLOSE``, or memory lacks.

    Return the smallest that failed above all that ran; None if there is none.

    Args:
        best: Throughput of what was tried before.
        patience: Settings in a row that bring nothing before it ends.
    """
    idle, fails = 0, None
    for value in values:
        trial = yield value
        fails = (fails or value) if trial.failed else None
        if trial.out_of_memory:
            break
        grew = trial.samples_per_s > (1 + CLOSE) * best
        best, idle = max(best, trial.samples_per_s), 0 if grew else idle + 1
        if idle == patience:
            break
    return fails


def batch_sizes() -> Search:
    """Try batch sizes, doubled while that pays.

    Where one fails, those between it and the largest that runs are bisected.
    """
    size, fails = _FIRST_SIZE, None
    trial = yield size
    said = None
    while trial.failed and size > 1:
        fails = size
        is_hopeless = trial.failed == said and not trial.out_of_memory
        said = trial.failed
        size = 1 if is_hopeless else size // 2
        trial = yield size
    if trial.failed:
        return
    largest = size
    if fails is None:
        sizes = (size << place for place in range(1, 40))
        fails = yield from growing(sizes, trial.samples_per_s, patience=_PATIENCE)
        largest = size if fails is None else fails // 2
    for _ in range(_BISECTIONS if fails is not None else 0):
        if fails is not None and (between := (largest + fails) // 2) not in (largest, fails):
            trial = yield between
            largest, fails = (largest, between) if trial.failed else (between, fails)


def smaller(than: Trial, best: float) -> Search:
    """Halve a batch size while it is not clear that smaller ones are worse."""
    size, rate = than.value, than.samples_per_s
    while size > 1 and rate >= _WORSE * best:
        size //= 2
        rate = (yield size).samples_per_s


class Memory(NamedTuple):
    """What memory grows by, as a straight line through what was measured."""

    base_bytes: float  # memory beside batches
    sample_bytes: float  # memory of a sample of a batch

    @classmethod
    def of(cls, trials: Sequence[Trial]) -> Memory | None:
        """Fit the line; the larger sizes tell more. None where fewer than three sizes tell of memory."""
        known = [each for each in trials if each.memory_bytes and not each.failed]
        if len({each.value for each in known}) < 3:
            return None
        known.sort(key=lambda each: each.value)
        sizes = np.array([each.value for each in known], float)
        # A larger batch takes no less: a trial of few batches may have been looked at between two of them.
        taken = np.maximum.accumulate([float(each.memory_bytes) for each in known])
        slope, base = np.polyfit(sizes, taken, 1, w=np.sqrt(sizes))
        return cls(float(base), max(0.0, float(slope)))

    def at(self, size: int) -> int:
        """Return the memory that a batch size takes."""
        return int(self.base_bytes + self.sample_bytes * size)

    def largest(self, limit_bytes: float) -> int | None:
        """Return the largest batch size that leaves a reserve of a limit; None if memory hardly grows."""
        room = (1 - RESERVE) * limit_bytes - self.base_bytes
        if room <= 0:
            return 0
        return None if self.sample_bytes * (1 << 24) < room else int(room / self.sample_bytes)
