"""What a run does at the moment, from the newest points of its series."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from penstock.runs.figures import MEMORY, own_memory
from penstock.runs.listeners import is_measured
from penstock.runs.store.columns import Floats, Ints
from penstock.runs.store.merged import Points, in_order, merged_files, points_of, series_of
from penstock.runs.store.points import HEAD_BYTES, Series, points_in


class Recent:
    """Looks at the newest points of a run, again and again.

    Of each series, those of ``window_s`` before its newest, and one more, stay in memory.
    """

    def __init__(self, run_folder: Path, window_s: float) -> None:
        self._folder = run_folder / "series"
        self._window_us = round(window_s * 1e6)
        self._ends: dict[str, int] = {}
        self._names: defaultdict[str, list[str]] = defaultdict(list)
        self._points: defaultdict[str, dict[str, Points]] = defaultdict(dict)
        self._cut_us: dict[str, int] = {}
        """For each series, the moment after which no file's points were dropped: before it, a sum lacks some."""
        self._rises: defaultdict[str, dict[str, _Rise]] = defaultdict(dict)
        """By file, how far those of its series have risen that count."""

    def look(self, wanted: Callable[[str], object]) -> dict[str, Series]:
        """Return the newest points of each series whose name is wanted."""
        self._read_new()
        files = [{name: each for name, each in file.items() if wanted(name)} for file in self._points.values()]
        merged = merged_files(files)
        for name in merged.keys() & self._cut_us.keys():
            times_us, values = merged[name]
            first = int(np.searchsorted(times_us, self._cut_us[name]))
            merged[name] = times_us[first:], values[first:]
        return series_of(merged)

    def names(self) -> set[str]:
        """Return the names of all series."""
        self._read_new()
        return {name for file in self._points.values() for name in file}

    def risen_per_s(self) -> dict[str, float]:
        """Return how fast those have risen that count steps or epochs: a count that stands still goes on later."""
        found: dict[str, float] = {}
        for name, rise in (each for of_file in self._rises.values() for each in of_file.items()):
            found[name] = max(found.get(name, 0.0), rise.per_s)
        return {name: per_s for name, per_s in found.items() if per_s}

    def _read_new(self) -> None:
        with suppress(FileNotFoundError):  # the run was removed while its folder was opened
            for path in self._folder.glob("*.points"):
                with suppress(OSError):  # compacted by now
                    self._read(path)

    def _read(self, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(end := self._ends.get(path.name, HEAD_BYTES))
            content = file.read()
        names = self._names[path.name]
        # What is not whole may be half written.
        if not (found := [block for block in points_in(content, names, 0, end) if block.body]):
            return
        self._ends[path.name] = found[-1].end
        known = self._points[path.name]
        for name, new in points_of(names, found, None)[0].items():
            times_us, values = in_order([known[name], new] if name in known else [new])
            first = max(0, int(np.searchsorted(times_us, int(times_us[-1]) - self._window_us)) - 1)
            known[name] = times_us[first:], values[first:]
            if _COUNTS.fullmatch(name) and np.isfinite(new[1]).any():
                self._rises[path.name][name] = _risen(self._rises[path.name].get(name), *new)
            if first:
                self._cut_us[name] = max(int(times_us[first]), self._cut_us.get(name, 0))


class _Rise(NamedTuple):
    """A count since it began, or fell: its first point, and the first one with its newest value."""

    from_us: int
    first: float
    until_us: int
    newest: float

    @property
    def per_s(self) -> float:
        """How fast it has risen; 0 as long as it has not."""
        passed_us = self.until_us - self.from_us
        return (self.newest - self.first) / passed_us * 1e6 if passed_us > 0 else 0.0


def _risen(rise: _Rise | None, times_us: Ints, values: Floats) -> _Rise:
    """Go on with new points of a count, of which some are finite."""
    is_number = np.isfinite(values)
    times_us, values = times_us[is_number], values[is_number]
    steps = np.diff(values, prepend=values[0] if rise is None else rise.newest)
    falls, rises = np.flatnonzero(steps < 0), np.flatnonzero(steps > 0)
    if rise is None or len(falls):
        at = falls[-1] if len(falls) else 0
        rise = _Rise(int(times_us[at]), float(values[at]), int(times_us[at]), float(values[at]))
    if len(rises) and (at := rises[-1]) > (falls[-1] if len(falls) else -1):
        rise = rise._replace(until_us=int(times_us[at]), newest=float(values[at]))
    return rise


_COUNTS = re.compile(r"(?i)(.*[/_])?(step|iteration|epoch)")
RECENT_S = 10.0
"""Seconds over which rates are taken."""


class Glance(msgspec.Struct, frozen=True, kw_only=True):
    """The last seconds of a run; None where nothing was sampled."""

    cores: float | None  # CPU time per second of its processes
    memory_bytes: float | None  # memory of its processes
    read_bytes_per_s: float | None  # bytes per second that its processes read
    waiting: float | None  # the part of the time that it waited for data
    logged: dict[str, float]  # the newest value of each series that its script logs, by name


def is_glanced_at(name: str) -> bool:
    """Return whether a glance looks at the series of this name: at all that a script logs, and some others."""
    return not is_measured(name) or name in MEMORY | {"proc.cpu_s", "proc.read_bytes", "feed.wait_s"}


def glance(series: Mapping[str, Series]) -> Glance:
    """Look at the newest points of a run's series."""

    def rate(name: str) -> float | None:
        return series[name].rise_per_s(RECENT_S) if name in series else None

    memory = own_memory(series)
    return Glance(
        cores=rate("proc.cpu_s"),
        memory_bytes=memory.last if memory else None,
        read_bytes_per_s=rate("proc.read_bytes"),
        waiting=rate("feed.wait_s"),
        logged={
            name: last
            for name, each in series.items()
            if not is_measured(name) and (last := each.last) is not None
        },
    )
