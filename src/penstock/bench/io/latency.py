"""Percentiles of many times, cheap enough not to disturb what is timed."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

_STEP = 0.01  # a bucket is 1% wider than the one before
_LEAST_S = 1e-7
_BUCKETS = int(math.log(1e10) / math.log1p(_STEP))  # up to 1,000 s
_KEPT = 1 << 16


class Latencies:
    """A histogram of times in buckets 1% apart; times are sorted in many at once."""

    def __init__(self) -> None:
        self._kept = np.empty(_KEPT)
        self._count = 0
        self._buckets = np.zeros(_BUCKETS, np.int64)

    def add(self, times_s: npt.NDArray[np.float64]) -> None:
        """Add some times."""
        assert len(times_s) <= _KEPT
        if self._count + len(times_s) > _KEPT:
            self._sort()
        self._kept[self._count : self._count + len(times_s)] = times_s
        self._count += len(times_s)

    def percentiles_us(self, *ranks: float) -> tuple[float | None, ...]:
        """Return percentiles for these ranks (0 to 1), in microseconds; None if there are no times."""
        self._sort()
        below = np.cumsum(self._buckets)
        if below[-1] == 0:
            return (None,) * len(ranks)
        found = np.searchsorted(below, [max(1, math.ceil(rank * below[-1])) for rank in ranks])
        return tuple(round(1e6 * _LEAST_S * (1 + _STEP) ** (float(i) + 0.5), 2) for i in found)

    def _sort(self) -> None:
        ratios = np.maximum(self._kept[: self._count] / _LEAST_S, 1.0)
        buckets = (np.log(ratios) / math.log1p(_STEP)).astype(np.int64)
        self._buckets += np.bincount(np.minimum(buckets, _BUCKETS - 1), minlength=_BUCKETS)
        self._count = 0
