"""Has the loaders of this program read feeds, each from when it is iterated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.basics.terminal import say
from penstock.inject import hook
from penstock.linux.fork import importing


def share_all() -> None:
    """Have every loader whose class is hooked, now or later, ask for a feed."""
    if share not in hook.GUARDS:
        hook.GUARDS.insert(0, share)


def share(loader: Any, make: Callable[[], Any]) -> Any:
    """Return an iterator of a loader that reads a feed, if that can be; else what ``make`` makes.

    Sharing is imported here and not before: where a loader's class is hooked, torch is half imported.
    """
    try:
        with importing:
            from penstock.autosharing.guard import guard
    except Exception as error:
        say(f"nothing is shared: {type(error).__name__}: {error}")
        hook.GUARDS.remove(share)
        return make()
    return guard(loader, make)
