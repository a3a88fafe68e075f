"""What a feeder reads: the loader itself, its blocks one by one, or what a cluster makes of it."""

from __future__ import annotations

from typing import Any, cast

from penstock.contracts import Source
from penstock.feed.settings import SEGMENTS_ACROSS, Settings
from penstock.sources.adapt import adapt
from penstock.sources.pure import ByBlock


def source_of(loader: Any, name: str, settings: Settings) -> Source:
    """Make the source of a feed of this name."""
    segments, seed = settings.segments, settings.seed
    if settings.across and segments is None:
        segments = SEGMENTS_ACROSS
    source = adapt(loader, segments=segments, seed=seed)
    if (remote := settings.remote) is not None:
        from penstock.sources.remote.remote_source import RemoteSource

        across = name if settings.across else None
        source = RemoteSource(loader, source, remote.most, segments=segments, seed=seed, across=across)
    elif settings.across:
        source = ByBlock(source, "across=True", joins=False)
    return cast(Source, source)
