"""What the page shows, as values that become JSON, which has null for NaN and infinity."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from penstock.errors import NoSuchRun
from penstock.runs.compare import Comparison, GroupFigures, compare, each_start, group_figures
from penstock.runs.figures import MEMORY, extremes, memory_bytes, newest_values
from penstock.runs.glance import Recent, glance, is_glanced_at
from penstock.runs.listeners import is_measured
from penstock.runs.record import ENDED, RunRecord
from penstock.runs.store import Series, Store
from penstock.runs.store.columns import Floats
from penstock.schedule.ledger import newest_ledgers
from penstock.web.charts import Line, drawn, is_counter, title_of
from penstock.web.files import NOT_ELSEWHERE
from penstock.web.lines import NOTHING, axis_of, chart, in_words, line_over

import_module("numpy.ma")  # np.unique imports it when first called, which fails in two threads at once

_OUTPUT_BYTES = 64 << 10
_LATE_S = 15.0
"""Most seconds from a point's time until it can be read, as writers write in blocks."""
_UNUSED_S = 60.0
_FOR_EVER_S = 1e9


class Views:
    """Reads a store for the page; called from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._followed: dict[tuple[str, float], tuple[Recent, float]] = {}
        self._ended: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._readers = ThreadPoolExecutor(os.cpu_count())

    def rows(self, known: Mapping[str, dict[str, Any]] | None = None) -> list[dict[str, Any]]:
        """Return a row of each run, in the order in which they were added.

        ``known`` are the rows that were returned before, if the store has not been written to since: then only
        runs that go on are read.
        """
        if known is not None:
            return [row if row["ended"] else row_of(self._store.run(id)) for id, row in known.items()]
        return [row_of(record) for record in self._store.runs()]

    def glances(self, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return what runs that go on do now; readers that have not been used for a while are dropped."""
        self.let_go(_UNUSED_S)
        found: dict[str, dict[str, Any]] = {}
        for id in ids:
            with self._lock:
                recent = self._recent(id, _LATE_S)
                now, per_s = glance(recent.look(is_glanced_at)), recent.risen_per_s()
            found[id] = {**structs.asdict(now), "logged": _in_words(now.logged), "per_s": per_s}
        return found

    def let_go(self, unused_s: float = 0.0) -> None:
        """Drop the readers of runs that have not been used for this time, with their points."""
        with self._lock:
            now_s = time.monotonic()
            self._followed = {key: each for key, each in self._followed.items() if now_s - each[1] <= unused_s}

    def summaries(self, ids: Collection[str]) -> dict[str, Any]:
        """Return figures of whole runs that have ended, under the names that a glance has."""
        for run in self._there(id for id in ids if id not in self._ended):
            if run.status in ENDED:
                self._ended[run.id] = _summary(run.seconds or 0.0, self._store.series(run.id, _is_summed_up))
        return {id: self._ended[id] for id in ids if id in self._ended}

    def details(self, id: str) -> dict[str, Any]:
        """Return all that is known of a run, without the points of its series."""
        record = self._store.run(id)
        found = self._series(record)
        return {
            **row_of(record),
            "command": list(record.plan.command),
            "directory": record.plan.directory,
            "damage": self._store.damage(record.id) if record.status in ENDED else "",
            "environment": self._store.environment(record.id),
            "output": _tail(self._store.folder_of(record.id) / "output"),
            "series": {
                name: {**_figures(name, found), **title_of(name)._asdict()}
                for name, each in sorted(found.items())
                if len(each.values)
            },
        }

    def titles(self, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the series that runs have, by name, each with its title."""
        names: set[str] = set()
        for run in self._there(ids):
            if run.status in ENDED:
                names |= set(self._store.names(run.id))
                continue
            with self._lock:
                names |= self._recent(run.id, _LATE_S).names()
        return {name: title_of(name)._asdict() for name in sorted(names)}

    def chart(
        self,
        name: str,
        ids: Sequence[str],
        begin: float,
        end: float,
        most: int,
        *,
        over: str,
        smoothing: float,
        band: str,
    ) -> dict[str, Any]:
        """Return a series of several runs between two places of the x axis, reduced to what a chart can show.

        Each id is a run, or several with commas between them, of which the line is the mean; one that was removed
        has no points. All else, and what is returned, is as of ``line_over`` and ``penstock.web.lines.chart``.
        """
        runs = [id for each in ids for id in each.split(",")]
        read = self._readers.map(partial(self._line, name, over=over), runs)
        return chart([list(islice(read, each.count(",") + 1)) for each in ids], begin, end, most, smoothing, band)

    def newest(self, ids: Iterable[str], names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the points of runs' last seconds, by run and name; some may have been returned before."""
        wanted = set(names)
        found: dict[str, dict[str, Any]] = {}
        for id in (run.id for run in self._there(ids)):
            found[id] = {}
            for name, series in self._look(id, _LATE_S, wanted.__contains__).items():
                times_s, values = drawn(name, series)
                found[id][name] = times_s.tolist(), values.tolist()
        return found

    def groups(self, ids: Sequence[str]) -> Comparison:
        """Return what groups took, by their ids, and once all runs have ended the conclusions.

        Of several ids with commas between them, the runs count as those of one group.
        """
        begun = self._begun(ids)
        if all(run.status in ENDED for of_group in begun.values() for run in of_group):
            return compare(begun, self._series)
        return Comparison(groups=tuple(group_figures(each, self._series) for each in begun.values()), sentences=())

    def starts(self, ids: Sequence[str]) -> dict[str, list[GroupFigures]]:
        """Return what each start took, of ids with commas between them, by the first of those."""
        return each_start(self._begun(ids), self._series)

    def _begun(self, ids: Sequence[str]) -> dict[str, list[RunRecord]]:
        runs = {each: [run for id in each.split(",") for run in self._store.runs(id) if run.began] for each in ids}
        return {id: of_group for id, of_group in runs.items() if of_group}

    def schedules(self) -> list[dict[str, Any]]:
        """Return the newest schedules, newest first: each run's records with their GPUs, and the plans."""
        newest = newest_ledgers(self._store, most=12)
        return [
            {
                "id": id,
                "began": ledger.began_s,
                "gpus": ledger.gpus,
                "runs": [(each.name, [*each.earlier, (each.id, each.gpus)]) for each in ledger.entries],
                "planned": ledger.expected,
                "coming": ledger.coming,
            }
            for id, ledger in sorted(newest.items(), key=lambda each: -each[1].began_s)
        ]

    def _there(self, ids: Iterable[str]) -> Iterator[RunRecord]:
        """Yield runs by their ids, but for those that were removed since somebody had them."""
        for id in ids:
            with suppress(NoSuchRun):
                yield self._store.run(id)

    def _line(self, name: str, id: str, over: str) -> Line:
        for run in self._there([id]):
            return line_over(name, self._series(run, {name, axis_of(over)}.__contains__), over, run.began)
        return NOTHING

    def _series(self, run: RunRecord, wanted: Callable[[str], object] = bool) -> dict[str, Series]:
        if run.status in ENDED:
            return self._store.series(run.id, wanted)
        return self._look(run.id, _FOR_EVER_S, wanted)

    def _look(self, id: str, window_s: float, wanted: Callable[[str], object]) -> dict[str, Series]:
        with self._lock:
            return self._recent(id, window_s).look(wanted)

    def _recent(self, id: str, window_s: float) -> Recent:
        """Return the reader of a run that goes on."""
        recent, _ = self._followed.get((id, window_s)) or (Recent(self._store.folder_of(id), window_s), 0.0)
        self._followed[id, window_s] = recent, time.monotonic()
        return recent


def row_of(record: RunRecord) -> dict[str, Any]:
    """Return the row of a run."""
    return {**record.fields, "ended": record.status in ENDED, "parameters": record.parameters}


def _is_summed_up(name: str) -> bool:
    return is_glanced_at(name) or name in MEMORY


def _summary(seconds: float, series: Mapping[str, Series]) -> dict[str, Any]:
    last = {name: each.last for name, each in series.items() if each.last is not None}

    def part(name: str) -> float | None:
        return last[name] / seconds if name in last and seconds > 0 else None

    return {
        "cores": part("proc.cpu_s"),
        "memory_bytes": memory_bytes([series], own=True),
        "read_bytes_per_s": part("proc.read_bytes"),
        "waiting": part("feed.wait_s"),
        "logged": _in_words({name: value for name, value in last.items() if not is_measured(name)}),
        "figures": {name: _extremes(newest_values(name, series)) for name in series if not is_measured(name)},
    }


def _extremes(values: Floats) -> tuple[float | str | None, ...]:
    found = extremes(values)
    last = in_words(found.last)
    return (last, last, last) if found.least is None else (last, found.least, found.most)


def _in_words(values: Mapping[str, float]) -> dict[str, Any]:
    return {name: in_words(value) for name, value in values.items()}


def _tail(path: Path) -> str:
    """Return a file's end; nothing if there is no file, or a run has put a link in its place."""
    try:
        with open(path, "rb", opener=lambda path, flags: os.open(path, flags | NOT_ELSEWHERE)) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _OUTPUT_BYTES))
            return file.read(_OUTPUT_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _figures(name: str, found: Mapping[str, Series]) -> dict[str, Any]:
    """Return the number of values that count, and the last and the mean of what is drawn.

    A counter's mean is its growth per second.
    """
    series, values = found[name], newest_values(name, found)
    before_last = max(0, int(np.searchsorted(series.times_s, series.times_s[-1:]).sum()) - 1)
    _, last = drawn(name, Series(series.times_s[before_last:], series.values[before_last:]))
    ends = Series(series.times_s[[0, -1]], series.values[[0, -1]])
    whole = drawn(name, ends)[1] if is_counter(name) else values
    with np.errstate(all="ignore"):
        return {
            "points": len(values),
            "last": in_words(float(last[-1])) if len(last) else None,
            "mean": in_words(float(np.mean(whole))) if len(whole) else None,
        }
