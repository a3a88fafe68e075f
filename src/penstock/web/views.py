"""What the page shows, as plain values that become JSON."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.runs.compare import compare, group_figures
from penstock.runs.glance import RECENT_S, glance, is_glanced_at
from penstock.runs.record import ENDED, RunRecord
from penstock.runs.store import Series, Store
from penstock.runs.store.recent import Recent
from penstock.web.buckets import reduced
from penstock.web.units import is_counter, rates, unit_of

_OUTPUT_BYTES = 64 << 10
_LATE_S = 15.0
"""Points may come so long after their time, as their writers write them in blocks."""
_UNUSED_S = 60.0
_FOR_EVER_S = 1e9


class Views:
    """Reads a store for the page; called from several threads.

    Args:
        store: The store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._followed: dict[tuple[str, float], tuple[Recent, float]] = {}
        self._ended: dict[str, dict[str, Any]] = {}
        self._version = -1
        self._lock = threading.Lock()

    def rows(self, known: Mapping[str, dict[str, Any]] | None = None) -> list[dict[str, Any]]:
        """Return a row of each run, in the order in which they were added.

        Args:
            known: Rows that were returned before; while nobody writes to the store, only runs that go on are read.
        """
        if known is not None:
            before, self._version = self._version, self._store.version()
            if before == self._version:
                return [row if row["ended"] else _row(self._store.run(id)) for id, row in known.items()]
        return [_row(record) for record in self._store.runs()]

    def glances(self, ids: Iterable[str]) -> dict[str, Any]:
        """Return what runs that go on do now."""
        found = {id: glance(self._newest(id, RECENT_S, is_glanced_at)) for id in ids}
        return _finite(msgspec.to_builtins(found))

    def summaries(self, ids: Iterable[str]) -> dict[str, Any]:
        """Return what runs that have ended did on the whole, as a glance at one that goes on would tell it."""
        for id in ids:
            if id not in self._ended and (run := self._store.run(id)).status in ENDED:
                self._ended[id] = _finite(_summary(run.seconds or 0.0, self._store.series(run.id, is_glanced_at)))
        return {id: self._ended[id] for id in ids if id in self._ended}

    def details(self, id: str) -> dict[str, Any]:
        """Return all that is known of a run, without the points of its series.

        Raises:
            NoSuchRun: there is none, or several.
        """
        record = self._store.run(id)
        folder = self._store.folder_of(record.id)
        return {
            **_row(record),
            "command": list(record.plan.command),
            "directory": record.plan.directory,
            "environment": _environment(folder / "environment.json"),
            "output": _tail(folder / "output"),
            "series": {
                name: {
                    "points": len(each.values),
                    "last": _number(each.values[-1]),
                    "mean": _mean(name, each),
                    "unit": unit_of(name),
                }
                for name, each in sorted(self._series(record).items())
                if len(each.values)
            },
        }

    def points(
        self, id: str, names: Iterable[str], begin_s: float, end_s: float, most: int
    ) -> dict[str, tuple[list[float], list[float | None]]]:
        """Return series of a run between two moments, reduced to what a chart can show.

        Raises:
            NoSuchRun: there is none, or several.
        """
        asked = list(names)
        series = self._series(self._store.run(id), set(asked).__contains__)
        found: dict[str, tuple[list[float], list[float | None]]] = {}
        for name in asked:
            if name in series:
                found[name] = _plain(*reduced(*_drawn(name, series[name]), begin_s, end_s, most))
        return found

    def newest(self, ids: Iterable[str], names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the points of runs' last seconds, by run and name; some may have been returned before."""
        asked = list(names)
        found: dict[str, dict[str, Any]] = {}
        for id in (self._store.run(id).id for id in ids):
            series = self._newest(id, _FOR_EVER_S, lambda _: True)
            found[id] = {}
            for name in asked:
                if name in series and len(times_s := series[name].times_s):
                    first = max(0, int(np.searchsorted(times_s, float(times_s[-1]) - _LATE_S)) - 1)
                    newest = Series(times_s[first:], series[name].values[first:])
                    found[id][name] = _plain(*_drawn(name, newest))
        return found

    def groups(self, ids: Sequence[str]) -> dict[str, Any]:
        """Return what groups took, by their ids, and what their figures say once all runs have ended."""
        runs = {id: [run for run in self._store.runs(id) if run.began is not None] for id in ids}
        begun = {id: of_group for id, of_group in runs.items() if of_group}
        if all(run.status in ENDED for of_group in begun.values() for run in of_group):
            return _finite(msgspec.to_builtins(compare(begun, self._series)))
        figures = [group_figures(each, self._series) for each in begun.values()]
        return {"groups": _finite(msgspec.to_builtins(figures)), "sentences": []}

    def _series(self, run: RunRecord, wanted: Callable[[str], bool] | None = None) -> dict[str, Series]:
        if run.status in ENDED:
            return self._store.series(run.id, wanted)
        return self._newest(run.id, _FOR_EVER_S, lambda _: True)

    def _newest(self, id: str, keep_s: float, wanted: Callable[[str], bool]) -> dict[str, Series]:
        """Return the series of a run that goes on, of which only what is new is read."""
        now_s = time.monotonic()
        with self._lock:
            recent, _ = self._followed.get((id, keep_s)) or (
                Recent(self._store.folder_of(id), keep_s, wanted),
                0.0,
            )
            self._followed[id, keep_s] = recent, now_s
            self._followed = {key: each for key, each in self._followed.items() if each[1] > now_s - _UNUSED_S}
            return recent.look()


def _row(record: RunRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.name,
        "group": record.group,
        "group_id": record.group_id,
        "mode": record.mode,
        "index": record.index,
        "status": record.status,
        "ended": record.status in ENDED,
        "exit_code": record.exit_code,
        "reason": record.reason,
        "began": record.began,
        "seconds": record.seconds,
        "parameters": record.plan.parameters,
    }


def _summary(seconds: float, series: Mapping[str, Series]) -> dict[str, Any]:
    last = {name: float(each.values[-1]) for name, each in series.items() if len(each.values)}
    rss = series.get("proc.rss_bytes")

    def part(name: str) -> float | None:
        return last[name] / seconds if name in last and seconds > 0 else None

    return {
        "cores": part("proc.cpu_s"),
        "rss_bytes": None if rss is None or not len(rss.values) else float(np.max(rss.values)),
        "read_bytes_per_s": part("proc.read_bytes"),
        "waiting": part("feed.wait_s"),
        "logged": {name: value for name, value in last.items() if "." not in name},
    }


def _drawn(name: str, series: Series) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return rates(*series) if is_counter(name) else (series.times_s, series.values)


def _plain(times_s: NDArray[np.float64], values: NDArray[np.float64]) -> tuple[list[float], list[float | None]]:
    return times_s.tolist(), [value if math.isfinite(value) else None for value in values.tolist()]


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _OUTPUT_BYTES))
            return file.read(_OUTPUT_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _mean(name: str, series: Series) -> float | None:
    """Return the mean value; of a counter, by how much it grew in a second."""
    _, values = (
        _drawn(name, Series(series.times_s[[0, -1]], series.values[[0, -1]])) if is_counter(name) else series
    )
    with np.errstate(all="ignore"):
        return _number(float(np.mean(values))) if len(values) else None


def _environment(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, json.JSONDecodeError):  # not described yet, or its writer was killed
        return None


def _number(value: float) -> float | None:
    """Return what JSON can hold: it knows no NaN and no infinity."""
    return float(value) if np.isfinite(value) else None


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    return value
