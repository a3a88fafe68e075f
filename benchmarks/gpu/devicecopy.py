"""Compares the GPU's copy from a pinned ring with one from torch's pinned memory; run as a separate process."""

from __future__ import annotations

import mmap
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.gpu.crossing import counting_gpu
from benchmarks.share.blocks import Blocks

from penstock.bench.measure.loop import reply
from penstock.memory.host_ring import WritableHostRing
from penstock.memory.room import aligned

_DISTINCT = 4


def ring_against_torch(device: str, nbytes: int, repeats: int) -> dict[str, Any]:
    """Measure GB/s of both, in turn.

    Raises:
        PinningRefused: the ring cannot be registered with the GPU.
    """
    gpu = counting_gpu(device)
    blocks = list(Blocks(nbytes, _DISTINCT))
    room = aligned(blocks[0].nbytes)
    ring = WritableHostRing.create(-(-room * _DISTINCT // mmap.PAGESIZE) * mmap.PAGESIZE)
    for i, block in enumerate(blocks):
        ring.write(room * i, block.reshape(-1))
    memory = ring.readable(0, ring.capacity_bytes)
    gpu.pin(memory)
    sources = [torch.as_tensor(block).reshape(-1) for block in blocks]
    sources = sources if device == "cpu" else [source.pin_memory() for source in sources]
    targets = [gpu.empty(block.nbytes) for block in blocks]

    def from_ring(i: int) -> None:
        gpu.copy(targets[i], ring.readable(room * i, blocks[i].nbytes), pinned=True)

    def with_torch(i: int) -> None:
        targets[i].copy_(sources[i], non_blocking=True)

    def arrived() -> None:
        gpu.synchronize()
        if device != "cpu":
            torch.cuda.synchronize(device)

    rates: dict[str, list[float]] = {"ring": [], "torch": []}
    for _ in range(repeats):
        rates["torch"].append(_rate(with_torch, arrived, room))
        rates["ring"].append(_rate(from_ring, arrived, room))
    assert all(t.cpu().numpy().tobytes() == b.tobytes() for t, b in zip(targets, blocks, strict=True))
    gpu.unpin(memory)
    ring.close()
    return {"nbytes": nbytes, "ring_GBps": rates["ring"], "torch_GBps": rates["torch"]}


def _rate(copy: Callable[[int], None], arrived: Callable[[], None], nbytes: int, for_s: float = 0.25) -> float:
    """Measure a copy's bytes/s, a few copies at a time so that waiting counts little."""
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < for_s:
        for i in range(_DISTINCT):
            copy(i)
        arrived()
        count += _DISTINCT
    return count * nbytes / elapsed / 1e9


if __name__ == "__main__":
    name, times, *sizes = sys.argv[1:]
    reply({"devicecopy": [ring_against_torch(name, int(size), int(times)) for size in sizes]})
