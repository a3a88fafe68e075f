"""What a benchmark claims, as ``benchmarks.readme`` reads it: a target, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any


def claim(
    what: str, unit: str, values: Sequence[float], *, least: float | None = None, most: float | None = None
) -> dict[str, Any]:
    """Judge the median of what was measured by the least or the most that it should be."""
    measured = median(values)
    at_least, target = (True, least) if most is None else (False, most)
    assert target is not None
    return {
        "claim": what,
        "target": target,
        "unit": unit,
        "at_least": at_least,
        "measured": measured,
        "spread": (min(values), max(values)) if len(values) > 1 else None,
        "met": measured >= target if at_least else measured <= target,
    }
