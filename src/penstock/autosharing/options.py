"""What ``penstock run --share`` asks of a run's loaders, and the hook by which they then ask for a feed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from penstock.basics.terminal import say
from penstock.inject import SHARE, TOGETHER, hook
from penstock.linux.fork import importing


class ShareOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which loaders of a run are shared, and how."""

    name: str = ""  # first part of the names of its feeds; the script's if empty
    workers: int | None = None  # worker processes of a feed's loader; as many as the script's loader has, if None
    only: str = ""  # pattern of the loaders that may be shared: of the data set's class, or of file and line
    iterable: bool = False  # whether loaders over an ``IterableDataset`` may be shared
    explain: bool = False  # whether each verdict is printed, with its reason
    pace: str = ""  # "together" keeps all runs on one feed
    strict: bool = False  # whether what hinders sharing ends the script


def to_environment(options: ShareOptions) -> dict[str, str]:
    """Return the environment variables that carry options."""
    return {SHARE: msgspec.json.encode(options).decode()}


def from_environment(environment: Mapping[str, str] = os.environ) -> ShareOptions | None:
    """Return the options that an environment carries, if it carries any."""
    text = environment.get(SHARE)
    return msgspec.json.decode(text, type=ShareOptions) if text else None


def runs_together(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many runs that share were started together with this one, itself included."""
    return int(environment.get(TOGETHER) or 1)


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
