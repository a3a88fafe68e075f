"""How long this process has waited for data, over all its loaders, open or closed."""

from __future__ import annotations

import time

_waits: tuple[float, float | None] = (0.0, None)  # seconds of those that are over, and when one that goes on began


def wait_began(since_s: float) -> None:
    """Count a wait from this moment of the monotonic clock on."""
    global _waits  # noqa: PLW0603 - it belongs to the process
    _waits = _waits[0], since_s


def wait_ended(seconds: float) -> None:
    """Count a wait that is over, or was broken off.

    Without a lock: a signal handler or a forked child may wait for data too. Of waits that two threads
    end in the same microsecond, one may be lost.
    """
    global _waits  # noqa: PLW0603
    _waits = _waits[0] + seconds, None


def waited_s() -> float:
    """Return the seconds that have been waited until now, with those of a wait that goes on."""
    over_s, since_s = _waits
    return over_s + (0.0 if since_s is None else time.monotonic() - since_s)
