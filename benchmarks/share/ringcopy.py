"""Compares the copy into the ring with torch's; the process ``python -m benchmarks.share.ringcopy``."""

from __future__ import annotations

import mmap
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from benchmarks.measure.loop import reply
from benchmarks.share.blocks import ROWS, Blocks

from penstock.contracts import SourceBlock
from penstock.feed.feeder.writer import BlockWriter
from penstock.memory.host_ring import WritableHostRing
from penstock.memory.room import aligned

_DISTINCT = 4


def ring_against_torch(nbytes: int, repeats: int, *, threads: int) -> dict[str, Any]:
    """Measure GB/s of both, in turn, into memory that has been written before.

    The ring's is a feeder's whole work: it takes the block's tree apart and
    copies its arrays.
    """
    torch.set_num_threads(threads)
    blocks = list(Blocks(nbytes, _DISTINCT))
    room = aligned(blocks[0].nbytes)
    ring = WritableHostRing.create(-(-room * _DISTINCT // mmap.PAGESIZE) * mmap.PAGESIZE)
    writer = BlockWriter(ring, whole_batches=True)
    targets = [torch.empty(block.shape, dtype=torch.uint8) for block in blocks]
    sources = [torch.from_numpy(block) for block in blocks]  # pyright: ignore[reportUnknownMemberType]

    def into_ring(i: int) -> None:
        writer.write(*writer.place(SourceBlock(0, ROWS, blocks[i])), room * i)

    def with_torch(i: int) -> None:
        targets[i].copy_(sources[i])

    rates: dict[str, list[float]] = {"ring": [], "torch": []}
    for _ in range(repeats):
        rates["ring"].append(_rate(into_ring, room))
        rates["torch"].append(_rate(with_torch, room))
    for i, block in enumerate(blocks):
        assert np.array_equal(ring.readable(room * i, block.nbytes), block.reshape(-1))
    ring.close()
    return {"threads": threads, "ring_GBps": rates["ring"], "torch_GBps": rates["torch"]}


def _rate(copy: Callable[[int], None], nbytes: int, for_s: float = 0.25) -> float:
    for i in range(_DISTINCT):
        copy(i)
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < for_s:
        copy(count % _DISTINCT)
        count += 1
    return count * nbytes / elapsed / 1e9


if __name__ == "__main__":
    size, times = int(sys.argv[1]), int(sys.argv[2])
    default = torch.get_num_threads()
    reply({"ringcopy": [ring_against_torch(size, times, threads=n) for n in dict.fromkeys((1, default))]})
