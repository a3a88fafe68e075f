"""How many items there are in what may not know it."""

from __future__ import annotations

from typing import Any


def length(thing: Any) -> int | None:
    """Return the length of a loader, a sampler or an iterable of batches; None if it knows none."""
    try:
        return len(thing)
    except (TypeError, NotImplementedError):  # the second from some samplers of torch, and of users
        return None
