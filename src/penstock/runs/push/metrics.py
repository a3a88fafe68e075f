"""A run's series as MLflow's metrics, and which of their points a server has."""

from __future__ import annotations

import posixpath
import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from penstock.linux.files import written_whole
from penstock.runs.figures import of_one_call
from penstock.runs.listeners import is_measured
from penstock.runs.store.columns import Floats, Ints
from penstock.runs.store.points import Series

EVERY_S = 10
"""Seconds for which one point of a sampled series stands, as with MLflow's own system metrics."""

LONGEST_NAME = 250
_GPU = re.compile(r"gpu\.(\d+)\.(utilisation_percent|memory_bytes|power_w)")
_OF_GPU = {
    "utilisation_percent": ("utilization_percentage", 1.0),
    "memory_bytes": ("memory_usage_megabytes", 1e6),
    "power_w": ("power_usage_watts", 1.0),
}
_MOST_STEP = 2**53


class Metric(NamedTuple):
    """Points of one metric, oldest first: milliseconds since 1970, values, steps."""

    times_ms: Ints
    values: Floats
    steps: Ints


def metrics_of(
    series: Mapping[str, Series], *, began: float, memory_bytes: int | None = None, until: float | None = None
) -> dict[str, Metric]:
    """Return a run's metrics by their names in MLflow.

    What the script logged has its own name and all its points; their step is the ``step`` of the same call, else
    the seconds since the run began. What was sampled is below ``system/``, under MLflow's name if there is one,
    with the last point of each 10 s.

    ``began`` is in seconds since 1970; so is ``until``, up to which the series are whole if the run goes on.
    ``memory_bytes`` is the machine's memory; None if nobody knows.
    """
    found: dict[str, Series] = {}
    for name, each in series.items():
        if is_measured(name):
            found |= _system(name, _thinned(each, began, until), series, memory_bytes)
        elif name != "step":
            found[name] = each if until is None else _up_to(each, until)
    names = unique_names(found)
    return {
        names[name]: Metric(
            np.rint(each.times_s * 1e3).astype(np.int64), each.values, _steps(each, series.get("step"), began)
        )
        for name, each in sorted(found.items())
        if len(each.values)
    }


def unique_names(names: Mapping[str, object], kept: str = "/") -> dict[str, str]:
    """Return for each name one that MLflow takes; other characters become ``_``, in paths slashes, too;
    no two become one. A slash is no longer one if ``kept`` is empty."""
    taken: dict[str, str] = {}
    for name in names:
        safe = re.sub(rf"[^{kept}\w.\- :]", "_", name)[:LONGEST_NAME]
        if safe in (".", "") or posixpath.normpath(safe) != safe or safe.startswith(("/", "..")):
            safe = re.sub(r"^\.+|/", lambda found: "_" * len(found[0]), safe)
        if safe != name and (safe in names or safe in taken.values()):
            safe = f"{safe[: LONGEST_NAME - 9]}-{zlib.crc32(name.encode()):08x}"
        taken[name] = safe
    return taken


def _up_to(series: Series, until: float) -> Series:
    count = int(np.searchsorted(series.times_s, until, side="right"))
    return Series(series.times_s[:count], series.values[:count])


def _thinned(series: Series, began: float, until: float | None) -> Series:
    """Leave the last point of each 10 s since the run began; of a run that goes on, of those that are over."""
    windows = np.floor((series.times_s - began) / EVERY_S)
    last = np.append(windows[1:] != windows[:-1], True)
    if until is not None:
        last &= began + (windows + 1) * EVERY_S <= until
    return Series(series.times_s[last], series.values[last])


def _steps(series: Series, logged: Series | None, began: float) -> Ints:
    steps = np.maximum(series.times_s - began, 0).astype(np.int64)
    if logged is not None:
        given = of_one_call(series, logged)
        with_step = np.abs(given) < _MOST_STEP
        steps[with_step] = given[with_step].astype(np.int64)
    return steps


def _system(name: str, each: Series, series: Mapping[str, Series], memory_bytes: int | None) -> dict[str, Series]:
    """Return what a sampled series becomes."""
    if of_gpu := _GPU.fullmatch(name):
        theirs, divisor = _OF_GPU[of_gpu[2]]
        return {f"system/gpu_{of_gpu[1]}_{theirs}": Series(each.times_s, each.values / divisor)}
    if name == "host.available_bytes" and memory_bytes:
        used = memory_bytes - each.values
        return {
            "system/system_memory_usage_megabytes": Series(each.times_s, used / 1e6),
            "system/system_memory_usage_percentage": Series(each.times_s, used / memory_bytes * 100),
        }
    if name == "host.cpu_s" and "host.cpus" in series:
        first = series[name]
        times_s = np.concatenate([first.times_s[:1], each.times_s])
        used_s = np.diff(np.concatenate([first.values[:1], each.values]))
        passed_s = np.diff(times_s)
        some = passed_s > 0
        percent = used_s[some] / passed_s[some] / series["host.cpus"].values[-1] * 100
        return {"system/cpu_utilization_percentage": Series(each.times_s[some], percent)}
    return {f"system/{name}": each}


class Pushed(msgspec.Struct):
    """What one experiment on one server has of a run."""

    run_id: str  # its key there
    metrics: dict[str, tuple[int, int]] = {}
    """For each metric how many points it has, and the milliseconds since 1970 of the last."""
    whole: bool = False  # whether the run has ended, and all of it is there

    def rest(self, name: str, metric: Metric) -> int:
        """Return the index of the first point to be pushed: 0 if points earlier than those there have come."""
        count, last_ms = self.metrics.get(name, (0, 0))
        return count if np.searchsorted(metric.times_ms, last_ms, side="right") == count else 0


class Notes:
    """The file in a run's folder that remembers what was pushed, written as a whole."""

    def __init__(self, folder: Path, place: str) -> None:
        self._path = folder / "mlflow.json"
        self._place = place  # the server and the experiment
        self._all: dict[str, Pushed] = {}
        with suppress(FileNotFoundError, msgspec.DecodeError):
            self._all = msgspec.json.decode(self._path.read_bytes(), type=dict[str, Pushed])

    @property
    def pushed(self) -> Pushed | None:
        return self._all.get(self._place)

    def write(self, pushed: Pushed) -> None:
        self._all[self._place] = pushed
        with written_whole(self._path) as half:
            half.write_bytes(msgspec.json.encode(self._all))
