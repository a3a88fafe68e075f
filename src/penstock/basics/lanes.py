"""Bars in lanes, as Gantt charts have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Bar(NamedTuple):
    """Something that lasts."""

    lane: int  # number of the lane that it lies in, from 0; those that overlap in one lie below each other
    start: float  # where it begins on the axis of time
    end: float  # where it ends
    label: str  # written into it, if it is long enough
    group: int  # number of its colour


def rows_of(bars: Sequence[Bar]) -> tuple[list[int], list[int]]:
    """Return the row of each bar, so that none in a lane overlap, and how many rows each lane has."""
    lanes = 1 + max(bar.lane for bar in bars)
    ends: list[list[float]] = [[] for _ in range(lanes)]
    row_of = dict[int, int]()
    for i in sorted(range(len(bars)), key=lambda i: bars[i].start):
        lane = ends[bars[i].lane]
        row = next((row for row, end in enumerate(lane) if end <= bars[i].start + 1e-9), len(lane))
        lane[row : row + 1] = [bars[i].end]
        row_of[i] = row
    heights = [max(1, len(lane)) for lane in ends]
    return [sum(heights[: bar.lane]) + row_of[i] for i, bar in enumerate(bars)], heights
