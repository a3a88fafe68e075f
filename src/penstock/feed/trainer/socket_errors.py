"""What a trainer's socket raises when its feeder is gone, and what only looks like it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def of_the_system(error: OSError) -> bool:
    """Whether a system call raised it: an alarm's handler may raise a bare TimeoutError, an OSError too."""
    return error.errno is not None


def despite_reset(receive: Callable[[], Any]) -> Any:
    """Receive, although the feeder may have closed its end with packets of ours unread.

    Linux reports that first, and then delivers what the feeder sent last.
    """
    try:
        return receive()
    except ConnectionResetError:
        return receive()
