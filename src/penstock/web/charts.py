"""What charts show: counters as rates with units, and lines on few common moments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from penstock.runs.listeners import is_measured
from penstock.runs.store.columns import Floats, Ints
from penstock.runs.store.points import Series

PART_OF_TIME = "% of the time"
_COUNTERS = {
    **dict.fromkeys(("wait_s", "loop_s", "copy_s", "busy_s", "held_back_s"), PART_OF_TIME),
    **dict.fromkeys(("read_bytes", "write_bytes"), "bytes/s"),
    **dict.fromkeys(("reads", "writes", "flushes", "batches", "samples", "missed"), "/s"),
    "cpu_s": "cores",
    "ready_s": "ready",
    "delayed_s": "waiting",
}
_APART_S = 0.4
_GAUGES = {"_bytes_per_s": "bytes/s", "_per_s": "/s", "_bytes": "bytes", "_s": "s", "_w": "W", "_percent": "%"}


def is_counter(name: str) -> bool:
    """Return whether a series only grows, from the beginning of its run; what a run used in all is one figure."""
    begin, _, end = name.rpartition(".")
    return (
        is_measured(name)
        and begin != "run"
        and (end in _COUNTERS or (name.startswith("energy.") and end.endswith("_j")))
    )


def unit_of(name: str) -> str:
    """Return the unit in which a series is drawn; empty if its name has none."""
    if is_counter(name):
        return _COUNTERS.get(name.rpartition(".")[2], "W")
    return next((unit for end, unit in _GAUGES.items() if name.endswith(end)), "")


def drawn(name: str, series: Series) -> tuple[Floats, Floats]:
    """Return the moments and values that a chart shows of a series."""
    if not is_counter(name):
        return series.times_s, series.values
    times_s, values = rates(*series)
    return times_s, values * 100 if unit_of(name) == PART_OF_TIME else values


def rates(times_s: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Return a counter's growth per second, up to each of its moments but the first.

    Moments are at least 0.4 s apart. Several processes write at moments of their own, and between those of two
    of them a counter that is the greatest of theirs stands still, and a sum grows by all of a process's.
    """
    last = np.diff(times_s, append=np.inf) > 0  # of several points at one moment
    times_s, counts = times_s[last], counts[last]
    if (np.diff(times_s) < _APART_S).any():
        before, kept = np.searchsorted(times_s, times_s - _APART_S, side="right").tolist(), [len(times_s)]
        while at := before[kept[-1] - 1]:
            kept.append(at)
        times_s, counts = (each[np.array(kept[::-1]) - 1] for each in (times_s, counts))
    return times_s[1:], np.diff(counts) / np.diff(times_s)


Line = tuple[Floats, Floats]
"""Moments of a line's points, rising, and their values."""


def on_common_moments(
    lines: Sequence[Line], begin_s: float, end_s: float, most: int
) -> tuple[Floats, list[tuple[Ints, Floats]]]:
    """Return the moments of a chart; for each line the indices of the moments that it has, and its values.

    At most ``most`` moments (4 or more) are those of the points, with each line's last point before the chart and
    its first behind, so that lines reach both edges. If there are more, the time is cut into buckets. In each, a
    line has its least and its greatest value, in their order, at two moments; NaN, if it has nothing else. At both
    edges, it has the value between its points. A chart from minus infinity begins with the first point, and one to
    infinity ends with the last.
    """
    cut = [part_of(line, begin_s, end_s) for line in lines]
    if (moments := union((times_s for times_s, _ in cut), most)) is not None:
        return moments, [(np.searchsorted(moments, times_s), values) for times_s, values in cut]
    begin_s = max(begin_s, min(float(times_s[0]) for times_s, _ in cut if len(times_s)))
    end_s = min(end_s, max(float(times_s[-1]) for times_s, _ in cut if len(times_s)))
    buckets = most // 2 - 1
    halves = begin_s + (end_s - begin_s) * (np.arange(2 * buckets) + 0.5) / (2 * buckets)
    found = [_extremes(times_s, values, begin_s, end_s, buckets) for times_s, values in cut]
    return np.concatenate([[begin_s], halves, [end_s]]), found


def union(moments: Iterable[Floats], most: int) -> Floats | None:
    """Return all of these rising moments, each once; None if they are more than ``most``."""
    each = list(moments)
    if any(np.count_nonzero(np.diff(times_s)) >= most for times_s in each):
        return None  # what is long is not sorted to find that out
    found = np.unique(np.concatenate(each)) if each else np.empty(0)
    return found if len(found) <= most else None


def part_of(line: Line, begin_s: float, end_s: float) -> Line:
    """Return a line between two moments, with its last point before them and its first behind."""
    times_s, values = line
    first = max(0, int(np.searchsorted(times_s, begin_s)) - 1)
    last = int(np.searchsorted(times_s, end_s, side="right")) + 1
    return times_s[first:last], values[first:last]


def _extremes(times_s: Floats, values: Floats, begin_s: float, end_s: float, buckets: int) -> tuple[Ints, Floats]:
    first = int(np.searchsorted(times_s, begin_s))
    last = int(np.searchsorted(times_s, end_s, side="right"))
    at, drawn = [np.empty(0, np.int64)], [np.empty(0)]
    if 0 < first < len(times_s):
        at.append(np.array([0]))
        drawn.append(np.interp([begin_s], times_s[first - 1 : first + 1], values[first - 1 : first + 1]))
    if first < last:
        inside = values[first:last]
        width_s = (end_s - begin_s) / buckets or 1.0
        firsts = np.searchsorted(times_s[first:last], begin_s + width_s * np.arange(buckets))
        filled = np.flatnonzero(np.diff(firsts, append=len(inside)))
        starts = firsts[filled]
        place = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(inside)))
        least = _first_of(np.where(np.isnan(inside), np.inf, inside), np.minimum, starts, place)
        greatest = _first_of(np.where(np.isnan(inside), -np.inf, inside), np.maximum, starts, place)
        two = np.stack([np.minimum(least, greatest), np.maximum(least, greatest)], axis=1)
        halves = 1 + 2 * filled[:, None] + np.arange(2)
        wanted = np.stack([np.ones(len(starts), bool), least != greatest], axis=1)
        at.append(halves[wanted])
        drawn.append(inside[two[wanted]])
    if 0 < last < len(times_s):
        at.append(np.array([2 * buckets + 1]))
        drawn.append(np.interp([end_s], times_s[last - 1 : last + 1], values[last - 1 : last + 1]))
    return np.concatenate(at), np.concatenate(drawn)


def _first_of(values: Floats, extreme: np.ufunc, starts: Ints, place: Ints) -> Ints:
    """Return where the first extreme value of each bucket is."""
    hits = np.flatnonzero(values == extreme.reduceat(values, starts)[place])
    return hits[np.flatnonzero(np.diff(place[hits], prepend=-1))]


_LOGGED = 0
FOLDED = _REST = 9
"""From this place on, a run's page folds charts away."""
AXES = ("step", "epoch")
"""What scripts log to say where they are: charts are drawn over it."""
_PARTS = {
    "feed.wait_s": (1, "Waits for data"),
    "feed.train.samples": (2, "Samples trained on"),
    "feed.train.batches": (2, "Batches trained on"),
    "feed.samples": (2, "Samples of all loops"),
    "feed.batches": (2, "Batches of all loops"),
    "feed.epoch_s": (2, "Time of an epoch"),
    "feed.main.epoch_s": (2, "Time of an epoch of the main loader"),
    "proc.cpu_s": (3, "CPU of its processes"),
    "proc.ready_s": (_REST, "Processes that run or could"),
    "proc.delayed_s": (_REST, "Processes that wait for a CPU"),
    "feed.cpu_s": (3, "CPU of the feed that it reads, its part"),
    "run.cpu_s": (_REST, "CPU time in all"),
    "host.cpu_s": (3, "CPU of the machine"),
    "proc.rss_bytes": (4, "Memory of its processes"),
    "proc.pss_bytes": (4, "Memory of its processes, shared pages divided"),
    "feed.memory_bytes": (4, "Memory of the feed that it reads, its part"),
    "host.available_bytes": (4, "Free memory of the machine"),
    "gpu.memory_bytes": (5, "GPU memory of its processes"),
    "proc.read_bytes": (6, "Reads from storage"),
    "proc.write_bytes": (6, "Writes to storage"),
    "feed.read_bytes": (6, "Reads of the feed that it reads, its part"),
    "feed.write_bytes": (_REST, "Writes of the feed that it reads, its part"),
    "feed.loop_s": (_REST, "In loops over loaders"),
    "feed.copy_s": (_REST, "Copies of batches"),
    "feed.held_back_s": (_REST, "Held back by a slower trainer"),
    "feed.lag_samples": (_REST, "Samples behind the feed"),
    "proc.processes": (_REST, "Processes"),
    "proc.threads": (_REST, "Threads"),
    "energy.estimated_j": (_REST, "Energy, estimated"),
}
"""Place among a run's charts and title, by name; the unit is the series' own."""
_OF_GPU = re.compile(r"(?:gpu|gpm|dcgm)\.(\d+)\.(?:mig(\d+)\.)?(\w+)")
_GPU_PARTS = {
    "utilisation_percent": (5, "busy"),
    "sm_active_percent": (5, "multiprocessors active"),
    "memory_bytes": (5, "memory"),
    "power_w": (5, "power"),
    "sm_occupancy_percent": (_REST, "occupancy of multiprocessors"),
    "tensor_percent": (_REST, "tensor cores"),
    "dram_percent": (_REST, "memory bandwidth"),
    "temperature_c": (_REST, "temperature"),
    "sm_mhz": (_REST, "clock"),
    "memory_mhz": (_REST, "memory clock"),
}
_DISK = re.compile(r"disk\.(.+)\.(read_bytes|write_bytes|busy_s)")
_DISK_PARTS = {"read_bytes": "reads", "write_bytes": "writes", "busy_s": "busy"}


class Title(NamedTuple):
    """How a series is shown."""

    text: str  # what people call it
    unit: str  # unit of its axis; empty if nobody knows
    place: int  # where it stands among a run's charts: what the script logs first, from 9 on folded away


def title_of(name: str) -> Title:
    """Return how a series is shown."""
    unit = unit_of(name)
    if not is_measured(name):
        return Title(name, unit, _REST if name in AXES else _LOGGED)
    if known := _PARTS.get(name):
        return Title(known[1], unit, known[0])
    if (gpu := _OF_GPU.fullmatch(name)) and (part := _GPU_PARTS.get(gpu[3])):
        mig = f", MIG {gpu[2]}" if gpu[2] else ""
        return Title(f"GPU {gpu[1]}{mig}: {part[1]}", unit, part[0])
    if disk := _DISK.fullmatch(name):
        return Title(f"Disk {disk[1]}: {_DISK_PARTS[disk[2]]}", unit, _REST)
    return Title(name, unit, _REST)
