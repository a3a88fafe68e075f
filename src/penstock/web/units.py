"""What a series is drawn as: a counter as what it grows by in a second, everything else as it is."""

from __future__ import annotations

import numpy as np

from penstock.runs.measured import is_measured
from penstock.runs.store.columns import Floats

_COUNTERS = {
    **dict.fromkeys(("wait_s", "loop_s", "copy_s", "busy_s", "held_back_s"), "of the time"),
    **dict.fromkeys(("read_bytes", "write_bytes"), "bytes/s"),
    **dict.fromkeys(("reads", "writes", "flushes", "batches", "samples", "missed"), "/s"),
    "cpu_s": "cores",
}
_GAUGES = {"_bytes_per_s": "bytes/s", "_per_s": "/s", "_bytes": "bytes", "_s": "s", "_w": "W", "_percent": "%"}


def is_counter(name: str) -> bool:
    """Return whether a series only grows, from the beginning of its run."""
    end = name.rpartition(".")[2]
    return is_measured(name) and (end in _COUNTERS or (name.startswith("energy.") and end.endswith("_j")))


def unit_of(name: str) -> str:
    """Return the unit in which a series is drawn; empty if its name does not tell."""
    if is_counter(name):
        return _COUNTERS.get(name.rpartition(".")[2], "W")
    return next((unit for end, unit in _GAUGES.items() if name.endswith(end)), "")


def rates(times_s: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Return by how much a counter grew in a second, up to each of its moments but the first."""
    last = np.diff(times_s, append=np.inf) > 0  # of several points at one moment
    times_s, counts = times_s[last], counts[last]
    return times_s[1:], np.diff(counts) / np.diff(times_s)
