"""A run's series as MLflow's metrics."""

from __future__ import annotations

import posixpath
import re
import zlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

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
    series: Mapping[str, Series], *, began: float, memory_bytes: int | None = None
) -> dict[str, Metric]:
    """Return a run's metrics by their names in MLflow.

    What the script logged has its own name and all its points; their step is the ``step`` of the same call, else
    the seconds since the run began. What was sampled is below ``system/``, under MLflow's name if there is one,
    with the last point of each 10 s.

    ``began`` is in seconds since 1970. ``memory_bytes`` is the machine's memory; None if nobody knows.
    """
    found: dict[str, Series] = {}
    for name, each in series.items():
        if is_measured(name):
            found |= _system(name, _thinned(each, began), series, memory_bytes)
        elif name != "step":
            found[name] = each
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


def _thinned(series: Series, began: float) -> Series:
    """Leave the last point of each 10 s since the run began."""
    windows = np.floor((series.times_s - began) / EVERY_S)
    last = np.append(windows[1:] != windows[:-1], True)
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
