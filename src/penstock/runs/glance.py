"""What a run does at the moment, from the newest points of its series."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

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

    def rate(name: str) -> float | None:
        return series[name].rise_per_s(RECENT_S) if name in series else None

    rss = series.get("proc.rss_bytes")
    return Glance(
        cores=rate("proc.cpu_s"),
        rss_bytes=rss.last if rss else None,
        read_bytes_per_s=rate("proc.read_bytes"),
        waiting=rate("feed.wait_s"),
        logged={
            name: last for name, each in series.items() if "." not in name and (last := each.last) is not None
        },
    )
