"""What a series is drawn as: a counter as what it grows by in a second, everything else as it is."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_COUNTERS = re.compile(
    r"(proc|host|disk|energy|feed|run|sampler)\..*"
    r"(cpu_s|wait_s|loop_s|copy_s|busy_s|_j|(read|write|sent|received)_bytes|reads|writes|flushes|batches|samples|missed)"
)
_UNITS = {"cpu_s": "cores", "_s": "of the time", "_j": "W", "_bytes": "bytes/s", "": "/s"}


def is_counter(name: str) -> bool:
    """Return whether a series only grows, from the beginning of its run."""
    return bool(_COUNTERS.fullmatch(name))


def unit_of(name: str) -> str:
    """Return the unit in which a series is drawn; empty if its name does not tell."""
    if is_counter(name):
        return next(unit for end, unit in _UNITS.items() if name.endswith(end))
    return "bytes" if name.endswith("_bytes") else "s" if name.endswith("_s") else ""


def rates(times_s: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Return by how much a counter grew in a second, up to each of its points but the first."""
    passed_s = np.diff(times_s)
    grown = np.diff(counts)
    at = passed_s > 0
    return times_s[1:][at], grown[at] / passed_s[at]
