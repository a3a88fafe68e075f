"""What the page shows, as plain values that become JSON."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from penstock.runs.compare import compare, group_figures
from penstock.runs.glance import glance
from penstock.runs.record import ENDED, RunRecord
from penstock.runs.store import Series, Store
from penstock.web.buckets import reduced
from penstock.web.units import is_counter, rates, unit_of

_KEPT_BYTES = 256 << 20
_OUTPUT_BYTES = 64 << 10


class Views:
    """Reads a store for the page; called from several threads.

    Args:
        store: The store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[str, tuple[object, dict[str, Series]]] = OrderedDict()
        self._nbytes: dict[str, int] = {}
        self._lock = threading.Lock()

    def rows(self) -> list[dict[str, Any]]:
        """Return a row of each run, in the order in which they were added."""
        return [_row(record) for record in self._store.runs()]

    def glances(self, ids: Iterable[str]) -> dict[str, Any]:
        """Return what runs do, or did last."""
        return {id: _finite(msgspec.to_builtins(glance(self.series(id)))) for id in ids}

    def details(self, id: str) -> dict[str, Any]:
        """Return all that is known of a run, without the points of its series.

        Raises:
            NoSuchRun: there is none, or several.
        """
        record = self._store.run(id)
        folder = self._store.folder_of(record.id)
        environment = folder / "environment.json"
        return {
            **_row(record),
            "command": list(record.plan.command),
            "directory": record.plan.directory,
            "environment": json.loads(environment.read_bytes()) if environment.exists() else None,
            "output": _tail(folder / "output"),
            "series": {
                name: {
                    "points": len(each.values),
                    "last": _number(each.values[-1]),
                    "mean": _mean(each),
                    "unit": unit_of(name),
                    "counts": is_counter(name),
                }
                for name, each in sorted(self.series(record.id).items())
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
        series = self.series(self._store.run(id).id)
        found: dict[str, tuple[list[float], list[float | None]]] = {}
        for name in names:
            if name in series:
                whole = rates(*series[name]) if is_counter(name) else series[name]
                times_s, values = reduced(*whole, begin_s, end_s, most)
                found[name] = times_s.tolist(), [_number(value) for value in values]
        return found

    def groups(self, ids: Sequence[str]) -> dict[str, Any]:
        """Return what groups took, by their ids, and what their figures say once all runs have ended."""
        runs = {id: [run for run in self._store.runs(id) if run.began is not None] for id in ids}
        begun = {id: of_group for id, of_group in runs.items() if of_group}
        if all(run.status in ENDED for of_group in begun.values() for run in of_group):
            return _finite(msgspec.to_builtins(compare(begun, lambda run: self.series(run.id))))
        figures = [group_figures(each, lambda run: self.series(run.id)) for each in begun.values()]
        return {"groups": _finite(msgspec.to_builtins(figures)), "sentences": []}

    def series(self, id: str) -> dict[str, Series]:
        """Return all series of a run; what was read stays in memory while nothing was written."""
        written = _written(self._store.folder_of(id) / "series")
        with self._lock:
            kept = self._kept.get(id)
            if kept and kept[0] == written:
                self._kept.move_to_end(id)
                return kept[1]
        series = self._store.series(id)
        with self._lock:
            self._kept[id] = written, series
            self._nbytes[id] = sum(each.times_s.nbytes + each.values.nbytes for each in series.values())
            while len(self._kept) > 1 and sum(self._nbytes.values()) > _KEPT_BYTES:
                oldest, _ = self._kept.popitem(last=False)
                del self._nbytes[oldest]
        return series


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


def _written(folder: Path) -> object:
    found: list[tuple[str, int, int]] = []
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            try:
                seen = path.stat()
            except FileNotFoundError:  # compacted
                continue
            found.append((path.name, seen.st_size, seen.st_mtime_ns))
    return found


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _OUTPUT_BYTES))
            return file.read(_OUTPUT_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _mean(series: Series) -> float | None:
    with np.errstate(all="ignore"):
        return _number(float(np.mean(series.values)))


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
