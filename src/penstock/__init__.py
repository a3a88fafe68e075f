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
    from penstock import errors as errors
    from penstock import select as select
    from penstock.autosharing.share import autoshare as autoshare
    from penstock.autosharing.share import share as share
    from penstock.errors import PenstockError as PenstockError
    from penstock.feed.feeder.feeder import Feeder as Feeder
    from penstock.feed.launch.attach import attach as attach
    from penstock.feed.launch.feeds import feeds as feeds
    from penstock.feed.launch.feeds import stop as stop
    from penstock.feed.trainer.loader import Loader as Loader
    from penstock.io.cache.cache import Cache as Cache
    from penstock.runs.export import load_runs as load_runs
    from penstock.runs.inside.parameters import params as params
    from penstock.runs.inside.run import current_run as current_run
    from penstock.runs.inside.run import log as log
    from penstock.sources.images.image_source import ImageSource as ImageSource
    from penstock.sources.packed.packed_source import PackedSource as PackedSource
    from penstock.sources.packed.packing import pack as pack
    from penstock.sources.plain import ArraySource as ArraySource
    from penstock.sources.rows.record_source import RecordSource as RecordSource
    from penstock.sources.streams.stream_source import StreamSource as StreamSource
    from penstock.sources.tokens.token_source import TokenSource as TokenSource
    from penstock.subsets.sampler import SelectionSampler as SelectionSampler
    from penstock.subsets.selection import Selection as Selection
    from penstock.tree.ragged import RaggedRows as RaggedRows
    from penstock.web.paper.pictures import show as show


_HOMES = {
    "ArraySource": "penstock.sources.plain",
    "Cache": "penstock.io.cache.cache",
    "Feeder": "penstock.feed.feeder.feeder",
    "ImageSource": "penstock.sources.images.image_source",
    "Loader": "penstock.feed.trainer.loader",
    "attach": "penstock.feed.launch.attach",
    "autoshare": "penstock.autosharing.share",
    "PackedSource": "penstock.sources.packed.packed_source",
    "RaggedRows": "penstock.tree.ragged",
    "RecordSource": "penstock.sources.rows.record_source",
    "Selection": "penstock.subsets.selection",
    "SelectionSampler": "penstock.subsets.sampler",
    "StreamSource": "penstock.sources.streams.stream_source",
    "TokenSource": "penstock.sources.tokens.token_source",
    "feeds": "penstock.feed.launch.feeds",
    "current_run": "penstock.runs.inside.run",
    "load_runs": "penstock.runs.export",
    "log": "penstock.runs.inside.run",
    "pack": "penstock.sources.packed.packing",
    "params": "penstock.runs.inside.parameters",
    "share": "penstock.autosharing.share",
    "show": "penstock.web.paper.pictures",
    "stop": "penstock.feed.launch.feeds",
    "PenstockError": "penstock.errors",
}
_MODULES = ("errors", "select")
_WAITED_FOR = {"Loader", "attach", "autoshare", "share"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"penstock.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    with _importing:
        value = getattr(import_module(_HOMES[name]), name)
        if name in _WAITED_FOR and "PENSTOCK_RUN_ID" in os.environ:
            import_module("penstock.runs.inside.watch").watch_loaders()
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return ["__version__", *_MODULES, *_HOMES]
