"""What a chart makes of lines: over steps, smoothed, several as their mean, with what no axis has a place for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.runs.figures import extremes, newest_at, steps_of
from penstock.runs.listeners import is_measured
from penstock.runs.store import Series
from penstock.runs.store.columns import Floats
from penstock.web.charts import Line, drawn, on_common_moments, part_of, union

CLOCK = "clock"
RANGE, DEVIATION, ERROR = BANDS = "range", "deviation", "error"
_SERIES = "series:"
NOTHING: Line = np.empty(0), np.empty(0)
_MOST_ODD = 50
_MOST_PLACES = 20_000
_LOST = 25.0
"""A block of values is smoothed at once while the first weighs at least exp(-25) in the last."""


def axis_of(over: str) -> str:
    """Return the name of the series that a chart is drawn over; empty if that is the time."""
    return over.removeprefix(_SERIES) if over.startswith(_SERIES) else ""


def line_over(name: str, series: Mapping[str, Series], over: str, began: float | None) -> Line:
    """Return what a chart draws of a series of a run, from all its points; nothing if the run does not have it.

    The x axis has ``over``: "" for seconds from when the run ``began``, "clock" for those since 1970, or
    "series:NAME" for what the run logged under that name. Of what it logged without a step, that is the number of
    the point. The axis's series is among ``series``; ``began`` is in seconds since 1970.
    """
    axis = axis_of(over)
    line = drawn(name, series[name]) if name in series else NOTHING
    if axis == "step" and not is_measured(name):
        along = steps_of(name, series) if name in series else line[0]
        newest = newest_at(along)
        return (along[newest], line[1][newest]) if len(newest) else (np.arange(len(along), dtype=float), line[1])
    if axis == "epoch" and not is_measured(name):
        return within_epochs(line, series[axis]) if axis in series else NOTHING
    if axis:
        return against(line, series[axis], every=is_measured(name)) if axis in series else NOTHING
    return (line[0] - began if over != CLOCK and began is not None else line[0]), line[1]


def chart(
    of_runs: Sequence[Sequence[Line]], begin: float, end: float, most: int, smoothing: float, band: str = RANGE
) -> dict[str, Any]:
    """Reduce lines to what a chart can show between two places of its x axis.

    Each line of the chart is that of a run, or the mean of those of several; ``most`` places are wanted.
    ``smoothing`` is the weight of what came before in a moving average, from 0 to below 1; 0 for none.

    Returns:
        ``times``, the places; ``lines``, for each line the indices of its places, None for all, and its values;
        ``smooth``, the same of their moving averages; ``bands``, the same of the lower and the upper bound and
        the number of runs of each mean, None for a single run; ``ends``, the places of their last points; ``odd``,
        where they are NaN or infinite; ``figures``, the last value (the mean of several runs'), the least and the
        greatest.
    """
    made = [together(lines, begin, end, band) for lines in of_runs]
    averaged = of_runs if smoothing else of_runs[:0]
    smooth = [
        together([(at, smoothed(values, smoothing)) for at, values in lines], begin, end, band)
        for lines in averaged
    ]
    bands = [band for _, *band in smooth or made]
    flat = [mean for mean, *_ in made + smooth] + [line for band in bands for line in band]
    times, found = on_common_moments(flat, begin, end, most)
    shown = iter((None if len(at) == len(times) else at.tolist(), values.tolist()) for at, values in found)
    return {
        "times": times.tolist(),
        "ends": [max((float(at[-1]) for at, _ in lines if len(at)), default=None) for lines in of_runs],
        "lines": [next(shown) for _ in made],
        "smooth": [next(shown) for _ in smooth],
        "bands": [[next(shown) for _ in band] or None for band in bands],
        "odd": [
            [mark for line in lines for mark in odd(line, begin, end, max(1, _MOST_ODD // len(lines)))]
            for lines in of_runs
        ],
        "figures": [_figures_of(lines) for lines in of_runs],
    }


def _figures_of(lines: Sequence[Line]) -> dict[str, float | None]:
    each = [extremes(values) for _, values in lines]
    lasts = [one.last for one in each if one.last is not None and math.isfinite(one.last)]
    return {
        "last": sum(lasts) / len(lasts) if lasts else None,
        "least": min((one.least for one in each if one.least is not None), default=None),
        "most": max((one.most for one in each if one.most is not None), default=None),
    }


def against(line: Line, axis: Series, *, every: bool = False) -> Line:
    """Return a line over the values that another series had at its moments; what comes before those is left out.

    Of several points at one value, as of a step that was logged again, it has the newest, or ``every`` one.
    """
    along = axis.at(line[0])
    newest = newest_at(along, every=every)
    return along[newest], line[1][newest]


def within_epochs(line: Line, epochs: Series) -> Line:
    """Return a line over epochs: an epoch's points lie at equal distances up to its number, the last one there.

    A point is of the epoch that was logged last, in its call or before; or of the next one, if there are points
    before the first was logged, as by a script that logs an epoch at its end. Behind the last of these, the epoch
    goes on: its points lie as close as those of the epoch before.
    """
    times_s, values = line
    if not len(times_s) or not len(epochs.times_s):
        return NOTHING
    numbers = epochs.values
    if times_s[0] < epochs.times_s[0]:
        last = np.append(np.diff(numbers) != 0, True)  # of the calls that log one epoch
        along = np.append(numbers[last], numbers[-1] + 1)[np.searchsorted(epochs.times_s[last], times_s)]
    else:
        along = epochs.at(times_s)
    begins = np.flatnonzero(np.append(True, np.diff(along) != 0))  # of the stretches of one epoch each
    sizes = np.diff(np.append(begins, len(along)))
    apart = np.append(1.0, np.diff(along[begins]))
    widths = np.where((apart > 0) & (apart < 1), apart, 1.0)  # a part of an epoch begins where the last one ended
    wanted = sizes.copy()
    if along[-1] != numbers[-1] and len(sizes) > 1:
        wanted[-1] = max(sizes[-2:])
    rank = np.arange(len(along)) - np.repeat(begins, sizes) + 1
    spread = along - np.repeat(widths, sizes) * (1 - rank / np.repeat(wanted, sizes))
    newest = newest_at(spread)
    return spread[newest], values[newest]


def smoothed(values: Floats, weight: float) -> Floats:
    """Return the exponential moving average, corrected for its beginning, as TensorBoard draws it.

    ``weight`` is that of what came before, from 0 to below 1. NaN and infinities stay, and do not count.
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
    return [(float(line[0][at]), str(in_words(line[1][at]))) for at in where]


def in_words(value: float | None) -> float | str | None:
    """Return a value that is NaN or infinite as a word, which JSON has no number for."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"


def together(lines: Sequence[Line], begin: float, end: float, band: str = RANGE) -> list[Line]:
    """Return the mean of several lines, a bound below and above it, and their number, from place to place.

    The bounds are the least and the greatest value, or as far from the mean as their standard deviation, or as
    the standard error of the mean: ``band`` is one of ``BANDS``.

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
    runs, total, squares = (np.zeros(len(places)) for _ in range(3))
    least, greatest = (np.full(len(places), np.nan) for _ in range(2))
    for held in _held(lines, places):
        runs += np.isfinite(held)
        total += np.nan_to_num(held)
        least, greatest = np.fmin(least, held), np.fmax(greatest, held)
    mean = total / np.maximum(runs, 1) + np.where(runs > 0, 0.0, np.nan)
    if band == RANGE:
        return [(places, values) for values in (mean, least, greatest, runs)]
    for held in _held(lines, places):
        squares += np.nan_to_num((held - mean) ** 2)
    away = np.sqrt(squares / np.maximum(runs - 1, 1) / (np.maximum(runs, 1) if band == ERROR else 1))
    return [(places, values) for values in (mean, mean - away, mean + away, runs)]


def _held(lines: Sequence[Line], places: Floats) -> Iterator[Floats]:
    """Yield what each line counts for at some places; NaN for nothing."""
    for at, values in lines:
        held = values[np.maximum(np.searchsorted(at, places, side="right") - 1, 0)]
        yield np.where(np.isfinite(held) & (places >= at[0]) & (places <= at[-1]), held, np.nan)
