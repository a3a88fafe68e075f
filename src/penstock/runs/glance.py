"""What a run does at the moment, from the newest points of its series."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from penstock.runs.store import Series

RECENT_S = 10.0
"""Rates are those of so many seconds."""


class Glance(msgspec.Struct, frozen=True, kw_only=True):
    """The last seconds of a run; None where nothing was sampled.

    Attributes:
        cores: CPU time per second of its processes.
        rss_bytes: Memory of its processes.
        read_bytes_per_s: Bytes per second that its processes read.
        waiting: The part of the time that it waited for data.
        logged: The newest value of each series that its script logs, by name.
    """

    cores: float | None
    rss_bytes: float | None
    read_bytes_per_s: float | None
    waiting: float | None
    logged: dict[str, float]


def is_glanced_at(name: str) -> bool:
    """Return whether a glance looks at the series of this name; a script's own has no dot."""
    return "." not in name or name in {"proc.rss_bytes", "proc.cpu_s", "proc.read_bytes", "feed.wait_s"}


def glance(series: Mapping[str, Series]) -> Glance:
    """Look at the newest points of a run's series."""
    rss = series.get("proc.rss_bytes")
    return Glance(
        cores=_rate(series.get("proc.cpu_s")),
        rss_bytes=None if rss is None or not len(rss.values) else float(rss.values[-1]),
        read_bytes_per_s=_rate(series.get("proc.read_bytes")),
        waiting=_rate(series.get("feed.wait_s")),
        logged={name: float(each.values[-1]) for name, each in series.items() if "." not in name},
    )


def _rate(counter: Series | None) -> float | None:
    """Return how fast a counter has risen lately, per second."""
    if counter is None or len(counter.times_s) < 2:
        return None
    times_s, values = counter
    recent = np.flatnonzero(times_s >= times_s[-1] - RECENT_S)
    first = min(int(recent[0]), len(times_s) - 2)
    passed_s = float(times_s[-1]) - float(times_s[first])
    return (float(values[-1]) - float(values[first])) / passed_s if passed_s > 0 else None
