"""Fewer points that look the same: the least and the greatest of each bucket of time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def reduced(times_s: Floats, values: Floats, begin_s: float, end_s: float, most: int) -> tuple[Floats, Floats]:
    """Return the points between two moments, at most about ``most`` of them, in order.

    With them come the last point before and the first behind, so that a line goes on to both edges of a chart. Of
    each bucket stay its least and its greatest value, and a NaN if it has nothing else.

    Args:
        times_s: Moments of the points, rising.
        values: Their values.
        begin_s: First moment of the chart.
        end_s: Last moment of the chart.
        most: Points wanted, 2 or more.
    """
    first = max(0, int(np.searchsorted(times_s, begin_s)) - 1)
    last = min(len(times_s), int(np.searchsorted(times_s, end_s, side="right")) + 1)
    times_s, values = times_s[first:last], values[first:last]
    if len(times_s) <= most:
        return times_s, values
    buckets = max(1, most // 2)
    width_s = (times_s[-1] - times_s[0]) / buckets or 1.0
    numbers = np.minimum(((times_s - times_s[0]) / width_s).astype(np.int64), buckets - 1)
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    lengths = np.diff(starts, append=len(numbers))
    place = np.repeat(np.arange(len(starts)), lengths)
    kept: list[NDArray[np.int64]] = []
    for worst, extreme in ((np.inf, np.fmin), (-np.inf, np.fmax)):
        comparable = np.where(np.isnan(values), worst, values)
        found = extreme.reduceat(comparable, starts)
        hits = np.flatnonzero(comparable == found[place])
        _, firsts = np.unique(place[hits], return_index=True)
        kept.append(hits[firsts])
    chosen = np.unique(np.concatenate(kept))
    return times_s[chosen], values[chosen]
