"""The process of a measured trainer: ``python -m penstock.bench.share.trainer``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.bench.measure.loop import Batches, serve
from penstock.bench.share.source import alone, described
from penstock.feed.launch.attach import attach
from penstock.tree import first_rows


def open_source(order: dict[str, Any]) -> Batches:
    """Open a feed, or this process's own loader."""
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
