"""Feeders that part within seconds."""

from __future__ import annotations

from penstock.feed.feeder import family, parting


def quickened(trial_s: float = 0.3) -> None:
    """Let this process's feeder measure for a second, not for half a minute, on cores that are idle."""
    quick = {"_MEASURED_S": 1.5, "_RECENT_S": 0.4, "_HOLDS_S": 0.4, "_RETURNS_AFTER_S": 0.3, "_STOPPED_S": 1.0}
    quick |= {"_PAUSE_S": 0.5, "_TRIAL_S": trial_s, "_LONGEST_TRIAL_S": 2.0, "_NEW_S": 1.0, "_START_S": 15.0}
    quick |= {"_PATIENCE_S": 2.0, "_MOST_PATIENCE_S": 2.0}
    for name, seconds in quick.items():
        setattr(parting, name, seconds)
    family._LOOK_S, family._TRIAL_LOOK_S, family._MEASURE_S = 0.1, 0.05, 0.5  # type: ignore[attr-defined]
    family.cpu_limits = lambda: {"": (8.0, 0.0)}  # type: ignore[assignment]
