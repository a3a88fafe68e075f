"""Penstock: one loader feeds every training run on the machine.

Names are loaded when first used, so that ``import penstock`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.errors import (
        BadSetting as BadSetting,
        BlockChanged as BlockChanged,
        BlockTooLarge as BlockTooLarge,
        FeederLost as FeederLost,
        FeedEnded as FeedEnded,
        FeedExists as FeedExists,
        FeedNotFound as FeedNotFound,
        ForkedLoader as ForkedLoader,
        InsecureDirectory as InsecureDirectory,
        LoaderClosed as LoaderClosed,
        PenstockError as PenstockError,
        Refused as Refused,
        SettingsDiffer as SettingsDiffer,
        SourceError as SourceError,
        TrainerEvicted as TrainerEvicted,
        UnsupportedLeaf as UnsupportedLeaf,
        VersionMismatch as VersionMismatch,
    )
    from penstock.feed.attach import attach as attach
    from penstock.feed.feeder import Feeder as Feeder
    from penstock.feed.feeds import feeds as feeds
    from penstock.feed.loader import Loader as Loader
    from penstock.feed.share import share as share
    from penstock.sources.arrays import ArraySource as ArraySource

__version__ = "0.1.0"

_ERRORS = (
    "BadSetting",
    "BlockChanged",
    "BlockTooLarge",
    "FeedEnded",
    "FeedExists",
    "FeedNotFound",
    "FeederLost",
    "ForkedLoader",
    "InsecureDirectory",
    "LoaderClosed",
    "PenstockError",
    "Refused",
    "SettingsDiffer",
    "SourceError",
    "TrainerEvicted",
    "UnsupportedLeaf",
    "VersionMismatch",
)
_HOMES = {
    "ArraySource": "penstock.sources.arrays",
    "Feeder": "penstock.feed.feeder",
    "Loader": "penstock.feed.loader",
    "attach": "penstock.feed.attach",
    "feeds": "penstock.feed.feeds",
    "share": "penstock.feed.share",
    **dict.fromkeys(_ERRORS, "penstock.errors"),
}

__all__ = ["__version__", *sorted(_HOMES)]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
