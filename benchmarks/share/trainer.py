"""The process of a measured trainer: ``python -m benchmarks.share.trainer``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from benchmarks.measure.loop import Batches, serve
from benchmarks.share.blocks import Blocks
from benchmarks.share.workload import Workload

import penstock


def open_source(order: dict[str, Any]) -> Batches:
    """Open what an order names (a feed, a ``DataLoader``, or plain copies), used on its device, if any."""
    device = order.get("device")
    if device is None:
        return _opened(order)
    from benchmarks.gpu.device import forget_memory, worked_on

    forget_memory(device)
    return worked_on(_opened(order), order)


def _opened(order: dict[str, Any]) -> Batches:
    device = order.get("device")
    if order["kind"] == "feed":
        return _feed(order["feed"], borrow=order["borrow"], device=device)
    if order["kind"] == "loader":
        return _loader(msgspec.convert(order["workload"], Workload), order["workers"], device)
    if order["kind"] == "own copies":
        from benchmarks.gpu.device import own_copies

        moved = own_copies(order["nbytes"], order["device"])
        return Batches(iter(moved), _rows, None, lambda: None, lambda: moved.copied_bytes)
    if order["kind"] == "device copies":
        from benchmarks.gpu.device import device_copies

        return Batches(device_copies(order["nbytes"], order["device"]), _rows, None, lambda: None)
    return _copies(order["nbytes"])


def _feed(name: str, *, borrow: bool, device: str | None) -> Batches:
    gpu = None
    if device is not None:
        from benchmarks.gpu.crossing import counting_gpu

        gpu = counting_gpu(device)
    loader = penstock.attach(name, borrow=borrow, device=gpu, wait_s=30.0)
    copied_bytes = (lambda: gpu.copied_bytes) if gpu else (lambda: 0)
    return Batches(_endless(loader), _rows, lambda: loader.statistics().latency_s, loader.close, copied_bytes)


def _loader(workload: Workload, workers: int, device: str | None) -> Batches:
    batches = _endless(workload.loader(workers, pin=device not in {None, "cpu"}))
    if device is None:
        return Batches(batches, _rows, None, batches.close)
    from benchmarks.gpu.device import Moved

    moved = Moved(batches, device)
    return Batches(iter(moved), _rows, None, batches.close, lambda: moved.copied_bytes)


def _copies(nbytes: int) -> Batches:
    """Copy ``nbytes`` between arrays in memory: the least that a private batch can cost.

    Several source arrays and two targets take turns, as in a trainer: a single
    pair would stay in the cache, and a feed's bytes do not.
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
    """Read one epoch of a feed whose batches number samples as "id"; count those received, lost and repeated."""
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


def device_memory(order: dict[str, Any]) -> dict[str, int]:
    from benchmarks.gpu.device import memory_bytes

    return {"device_bytes": memory_bytes(order["device"])}


if __name__ == "__main__":
    serve(open_source, {"epoch": epoch, "device memory": device_memory})
