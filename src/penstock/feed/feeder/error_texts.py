"""How a feeder describes a failure: of its source, or of a trainer that holds the feed back."""

from __future__ import annotations

import re


def cause(error: Exception) -> str:
    """Return an exception's type and message; for a torch worker's, those of the original, and which worker."""
    caught = re.match(r"Caught (\w+) (in .*?)\.\nOriginal Traceback", str(error))
    if caught is None:
        return f"{type(error).__name__}: {error}"
    kind, where = caught.groups()
    *_, original = re.split(rf"\n(?=[\w.]*\b{kind}\b)", str(error).rstrip())
    return f"{original} ({where})"


def stuck(pid: int, held_bytes: int, window_bytes: int, feed: str) -> str:
    """Say to a trainer that its own views leave no room for the batch that it waits for."""
    return (
        f"this trainer (pid {pid}) waits for a batch, and the views that it keeps (borrow=True) hold "
        f"{held_bytes:,} of the {window_bytes:,} bytes of the window of feed "
        f"{feed!r}, so that there is no room for it. Let views go before you go on "
        "(list(loader) keeps all), copy what you keep, leave borrow out, or give the feed a larger window"
    )


def evicted(
    pid: int, held_bytes: int, window_bytes: int, feed: str, held_back_s: float, limit_s: float | None
) -> str:
    """Say to a trainer that the feed goes on without it, for it held it back for too long."""
    return (
        f"this trainer (pid {pid}) held {held_bytes:,} of {window_bytes:,} "
        f"bytes of feed {feed!r} and released none of them for {held_back_s:.1f} s, longer than "
        f"the feed's stall_timeout of {limit_s} s; the others went on without it. Raise "
        "stall_timeout or window, or load its last state_dict() into a new Loader"
    )
