"""What a chart makes of lines: over steps, smoothed, several as their mean, with what no axis has a place for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from penstock.runs.store import Series
from penstock.runs.store.columns import Floats
from penstock.web.charts import Line, part_of, union

_MOST_PLACES = 20_000
_LOST = 25.0
"""A block of values is smoothed at once while the first weighs at least exp(-25) in the last."""


def against(line: Line, axis: Series) -> Line:
    """Return a line over the values that another series had at its moments; what comes before those is left out.

    Points come by rising values of the axis, those at one value in the order of time.
    """
    places = np.searchsorted(axis.times_s, line[0], side="right") - 1
    along = np.where(places >= 0, axis.values[np.maximum(places, 0)] if len(axis.values) else np.nan, np.nan)
    known = np.isfinite(along)
    order = np.argsort(along[known], kind="stable")
    return along[known][order], line[1][known][order]


def smoothed(values: Floats, weight: float) -> Floats:
    """Return the exponential moving average, corrected for its beginning, as TensorBoard draws it.

    NaN and infinities stay, and do not count.

    Args:
        values: The values, in their order.
        weight: That of what came before, from 0 to below 1.
    """
    finite = np.isfinite(values)
    given = values[finite]
    made = np.empty(len(given))
    block = max(1, int(-_LOST / math.log(weight))) if weight > 0 else len(given) or 1
    before = 0.0
    for first in range(0, len(given), block):
        part = given[first : first + block]
        powers = weight ** np.arange(1.0, len(part) + 1)
        average = part if weight == 0 else powers * (before + (1 - weight) * np.cumsum(part / powers))
        made[first : first + block] = average
        before = float(average[-1])
    found = values.copy()
    found[finite] = made / -np.expm1(np.arange(1.0, len(given) + 1) * math.log(weight)) if weight > 0 else made
    return found


def odd(line: Line, begin: float, end: float, most: int) -> list[tuple[float, str]]:
    """Return where a line is NaN or infinite between two places, and which: at most so many, spread over all."""
    where = np.flatnonzero(~np.isfinite(line[1]) & (line[0] >= begin) & (line[0] <= end))
    if len(where) > most:
        where = where[np.unique(np.linspace(0, len(where) - 1, most).astype(np.int64))]
    words = {True: "∞", False: "−∞"}
    return [
        (float(line[0][at]), "NaN" if math.isnan(line[1][at]) else words[bool(line[1][at] > 0)]) for at in where
    ]


def together(lines: Sequence[Line], begin: float, end: float) -> list[Line]:
    """Return the mean of several lines, their least and greatest value, and their number, from place to place.

    The common places are those of all points; of more than 20,000, as many at equal distances. Between its
    points a line has the value of the last. Before its first point and behind its last it does not count, nor
    where it is NaN or infinite. A single line is returned as it is.
    """
    if len(lines) == 1:
        return [*lines]
    lines = [line for line in lines if len(line[0])]
    parts = [part_of(line, begin, end)[0] for line in lines]
    places = union(parts, _MOST_PLACES)
    if places is None:
        there = np.concatenate([part[[0, -1]] for part in parts if len(part)])
        places = np.linspace(max(begin, there.min()), min(end, there.max()), _MOST_PLACES)
    runs, total = np.zeros(len(places)), np.zeros(len(places))
    least, greatest = np.full(len(places), np.inf), np.full(len(places), -np.inf)
    for at, values in lines:
        held = values[np.maximum(np.searchsorted(at, places, side="right") - 1, 0)]
        counts = np.isfinite(held) & (places >= at[0]) & (places <= at[-1])
        runs += counts
        total += np.where(counts, held, 0)
        least = np.where(counts, np.minimum(least, held), least)
        greatest = np.where(counts, np.maximum(greatest, held), greatest)
    none = np.where(runs > 0, 0.0, np.nan)
    mean = total / np.maximum(runs, 1) + none
    return [(places, values) for values in (mean, least + none, greatest + none, runs)]
