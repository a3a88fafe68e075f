"""Penstock: one loader feeds every training run on the machine.

Names are loaded when first used, so that ``import penstock`` costs nothing.
"""

from __future__ import annotations

import os
import sys

try:
    from penstock.linux.fork import importing as _importing
except KeyboardInterrupt:  # the command's main(), which catches it later, is not yet there
    if os.path.basename(sys.argv[0]) != "penstock":
        raise
    sys.exit(130)

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock._version import __version__ as __version__

if TYPE_CHECKING:
    from penstock import select as select
    from penstock.autosharing.share import autoshare as autoshare
    from penstock.autosharing.share import share as share
    from penstock.errors import BadSetting as BadSetting
    from penstock.errors import BlockChanged as BlockChanged
    from penstock.errors import BlockTooLarge as BlockTooLarge
    from penstock.errors import DeviceUnavailable as DeviceUnavailable
    from penstock.errors import DirectoryUnusable as DirectoryUnusable
    from penstock.errors import FeedEnded as FeedEnded
    from penstock.errors import FeederLost as FeederLost
    from penstock.errors import FeederSilent as FeederSilent
    from penstock.errors import FeedExists as FeedExists
    from penstock.errors import FeedNotFound as FeedNotFound
    from penstock.errors import FeedStopped as FeedStopped
    from penstock.errors import ForkedLoader as ForkedLoader
    from penstock.errors import InsecureDirectory as InsecureDirectory
    from penstock.errors import LoaderClosed as LoaderClosed
    from penstock.errors import PackDamaged as PackDamaged
    from penstock.errors import PackStopped as PackStopped
    from penstock.errors import PenstockError as PenstockError
    from penstock.errors import ProtocolError as ProtocolError
    from penstock.errors import ReaderUnavailable as ReaderUnavailable
    from penstock.errors import ReadFailed as ReadFailed
    from penstock.errors import Refused as Refused
    from penstock.errors import SettingsDiffer as SettingsDiffer
    from penstock.errors import SourceError as SourceError
    from penstock.errors import TrainerEvicted as TrainerEvicted
    from penstock.errors import UnsupportedLeaf as UnsupportedLeaf
    from penstock.errors import VersionMismatch as VersionMismatch
    from penstock.errors import WindowHeld as WindowHeld
    from penstock.feed.feeder.feeder import Feeder as Feeder
    from penstock.feed.launch.attach import attach as attach
    from penstock.feed.launch.feeds import feeds as feeds
    from penstock.feed.launch.feeds import stop as stop
    from penstock.feed.trainer.loader import Loader as Loader
    from penstock.io.cache.cache import Cache as Cache
    from penstock.runs.inside.run import log as log
    from penstock.runs.inside.run import run as run
    from penstock.sources.arrays import ArraySource as ArraySource
    from penstock.sources.images.source import ImageSource as ImageSource
    from penstock.sources.packed import PackedSource as PackedSource
    from penstock.sources.packed.packing import pack as pack
    from penstock.sources.tokens import TokenSource as TokenSource
    from penstock.subsets.sampler import SelectionSampler as SelectionSampler
    from penstock.subsets.selection import Selection as Selection


_ERRORS = (
    "BadSetting",
    "BlockChanged",
    "BlockTooLarge",
    "DeviceUnavailable",
    "DirectoryUnusable",
    "FeedEnded",
    "FeedExists",
    "FeedNotFound",
    "FeedStopped",
    "FeederLost",
    "FeederSilent",
    "ForkedLoader",
    "InsecureDirectory",
    "LoaderClosed",
    "PackDamaged",
    "PackStopped",
    "PenstockError",
    "ProtocolError",
    "ReadFailed",
    "ReaderUnavailable",
    "Refused",
    "SettingsDiffer",
    "SourceError",
    "TrainerEvicted",
    "UnsupportedLeaf",
    "VersionMismatch",
    "WindowHeld",
)
_HOMES = {
    "ArraySource": "penstock.sources.arrays",
    "Cache": "penstock.io.cache.cache",
    "Feeder": "penstock.feed.feeder.feeder",
    "ImageSource": "penstock.sources.images.source",
    "Loader": "penstock.feed.trainer.loader",
    "attach": "penstock.feed.launch.attach",
    "autoshare": "penstock.autosharing.share",
    "PackedSource": "penstock.sources.packed",
    "Selection": "penstock.subsets.selection",
    "SelectionSampler": "penstock.subsets.sampler",
    "TokenSource": "penstock.sources.tokens",
    "feeds": "penstock.feed.launch.feeds",
    "log": "penstock.runs.inside.run",
    "pack": "penstock.sources.packed.packing",
    "run": "penstock.runs.inside.run",
    "share": "penstock.autosharing.share",
    "stop": "penstock.feed.launch.feeds",
    **dict.fromkeys(_ERRORS, "penstock.errors"),
}
_LOADERS = {"Loader", "attach", "share"}


def __getattr__(name: str) -> Any:
    if name == "select":
        return import_module("penstock.select")
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    with _importing:
        value = getattr(import_module(_HOMES[name]), name)
        if name in _LOADERS and "PENSTOCK_RUN_ID" in os.environ:
            import_module("penstock.runs.inside.run").watch_waits()
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return ["__version__", "select", *_HOMES]
