"""What the environment says of a run's feed: which of those that bear its name, and with how many workers."""

from __future__ import annotations

import os

from penstock.basics.sizes import whole_number
from penstock.errors import BadSetting
from penstock.feed.endpoint import checked_name

_SUFFIX = "PENSTOCK_FEED_SUFFIX"
_WORKERS = "PENSTOCK_FEED_WORKERS"


def with_suffix(name: str) -> str:
    """Return the name of the feed that this run joins under ``name``, which the environment may append to.

    Raises:
        BadSetting: it is no name, or would be none with the suffix.
    """
    checked_name(name)
    if not (suffix := os.environ.get(_SUFFIX)):
        return name
    try:
        return checked_name(f"{name}-{suffix}")
    except BadSetting as error:
        raise BadSetting(f"{_SUFFIX}={suffix!r} is appended to {name!r}: {error}") from None


def workers() -> int | None:
    """Return how many workers a feeder that this run starts gives its torch loader; None for the loader's own.

    Raises:
        BadSetting: the environment names no such number.
    """
    given = os.environ.get(_WORKERS)
    if not given:
        return None
    return whole_number(_WORKERS, int(given) if given.isdecimal() else given, 0, 4096)  # type: ignore[arg-type]
