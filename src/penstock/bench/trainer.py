"""A measured trainer, a process of its own: ``python -m penstock.bench.trainer``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

import penstock
from penstock.bench.blocks import Blocks
from penstock.bench.loop import Batches, serve
from penstock.bench.workload import Workload


def open_source(order: dict[str, Any]) -> Batches:
    """What an order names: a feed, a ``DataLoader`` of this process's own, or a plain copy in warm memory."""
    if order["kind"] == "feed":
        return _feed(order["feed"], borrow=order["borrow"])
    if order["kind"] == "loader":
        return _loader(msgspec.convert(order["workload"], Workload), order["workers"])
    return _copies(order["nbytes"])


def _feed(name: str, *, borrow: bool) -> Batches:
    loader = penstock.attach(name, borrow=borrow, wait_s=30.0)
    return Batches(_endless(loader), _rows, lambda: loader.statistics().latency_s, loader.close)


def _loader(workload: Workload, workers: int) -> Batches:
    loader = workload.loader(workers)
    batches = _endless(loader)
    return Batches(batches, _rows, None, batches.close)


def _copies(nbytes: int) -> Batches:
    """Copies of ``nbytes`` between arrays that lie in memory: the least that a private batch can cost.

    From several arrays in turn into two in turn, as a trainer's copies go: one
    pair would stay in the cache, and no feed's bytes do.
    """
    sources = list(Blocks(nbytes, 4))
    targets = [np.zeros_like(source) for source in sources[:2]]

    def copies() -> Iterator[Any]:
        while True:
            for i, source in enumerate(sources):
                target = targets[i % 2]
                target[:] = source
                yield target

    return Batches(copies(), _rows, None, lambda: None)


def _endless(loader: Any) -> Any:
    while True:
        yield from loader


def _rows(batch: Any) -> int:
    return len(batch[0] if type(batch) in {tuple, list} else batch)


def epoch(order: dict[str, Any]) -> dict[str, Any]:
    """One epoch of a feed whose batches are {"id": numbers, ...}: how many samples came, were lost, came twice."""
    seen = np.zeros(order["samples"], np.int64)
    with penstock.attach(order["feed"], order["batch_size"], wait_s=30.0) as loader:
        for batch in loader:
            np.add.at(seen, batch["id"], 1)
    return {
        "pid": os.getpid(),
        "samples": int(seen.sum()),
        "lost": int((seen == 0).sum()),
        "repeated": int((seen > 1).sum()),
    }


if __name__ == "__main__":
    serve(open_source, {"epoch": epoch})
