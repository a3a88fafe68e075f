"""The newest points of a run that goes on: what has come since the last look is read, and nothing twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from penstock.runs.store.merged import Points, in_order, merged_files, points_of, series_of
from penstock.runs.store.points import HEAD_BYTES, blocks
from penstock.runs.store.series import Series


class Recent:
    """Looks at the newest points of a run, again and again.

    Args:
        run_folder: The run's folder in the store.
        keep_s: Seconds before its newest point from which a series' points are kept, and one more point.
    """

    def __init__(self, run_folder: Path, keep_s: float) -> None:
        self._folder = run_folder / "series"
        self._keep_us = round(keep_s * 1e6)
        self._ends: dict[str, int] = {}
        self._names: defaultdict[str, list[str]] = defaultdict(list)
        self._points: defaultdict[str, dict[str, Points]] = defaultdict(dict)
        self._cut_us: dict[str, int] = {}
        """Of each series the moment from which on every file's points are kept: before it, a sum lacks some."""

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

    def _read_new(self) -> None:
        for path in self._folder.glob("*.points"):
            with suppress(OSError):  # compacted by now
                self._read(path)

    def _read(self, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(end := self._ends.get(path.name, HEAD_BYTES))
            content = file.read()
        found = list(blocks(content, 0))
        if not found:
            return
        self._ends[path.name] = end + found[-1].end
        names = self._names[path.name]
        for block in found:
            names += block.names
        known = self._points[path.name]
        for name, new in points_of(names, found, None).items():
            times_us, values = in_order([known[name], new] if name in known else [new])
            first = max(0, int(np.searchsorted(times_us, int(times_us[-1]) - self._keep_us)) - 1)
            known[name] = times_us[first:], values[first:]
            if first:
                self._cut_us[name] = max(int(times_us[first]), self._cut_us.get(name, 0))
