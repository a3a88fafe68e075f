"""A measured trainer, a process of its own: ``python -m penstock.bench.share.trainer``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.bench.share.source import alone, described
from penstock.feed.launch.attach import attach
from penstock.measure.loop import Batches, serve
from penstock.tree import first_rows


def open_source(order: dict[str, Any]) -> Batches:
    """Batches of a feed, or of a loader that this process has for itself."""
    if "feed" not in order:
        return alone(order["where"], order["workers"])
    loader = attach(order["feed"])

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    return Batches(batches(), first_rows, None, loader.close)


def describe(order: dict[str, Any]) -> dict[str, Any]:
    return {"loader": msgspec.to_builtins(described(order["where"]))}


if __name__ == "__main__":
    serve(open_source, {"describe": describe})
