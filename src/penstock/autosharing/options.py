"""What ``penstock run --share`` asks of a run's loaders; it travels in the environment of its processes."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from penstock.inject import SHARE, TOGETHER


class ShareOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which loaders of a run are shared, and how.

    Attributes:
        name: First part of the names of its feeds; the script's if empty.
        workers: Worker processes of a feed's loader; as many as the script's loader has, if None.
        only: Pattern of the loaders that may be shared: of the data set's class, or of file and line.
        iterable: Whether loaders over an ``IterableDataset`` may be shared.
        explain: Whether each verdict is told, with its reason.
        strict: Whether what hinders sharing ends the script.
    """

    name: str = ""
    workers: int | None = None
    only: str = ""
    iterable: bool = False
    explain: bool = False
    strict: bool = False


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
