"""How long this process has waited for data, over all its loaders, open or closed."""

from __future__ import annotations

_waited_s = 0.0


def waited(seconds: float) -> None:
    """Count a wait that is over.

    Without a lock: a signal handler or a forked child may wait for data too. Of waits that two threads
    end in the same microsecond, one may be lost.
    """
    global _waited_s  # noqa: PLW0603 - it belongs to the process
    _waited_s += seconds


def waited_s() -> float:
    """Return the seconds that have been waited until now."""
    return _waited_s
