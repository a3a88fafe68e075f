"""The measured loop, which keeps a number of reads under way."""

from __future__ import annotations

import mmap
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.bench.io.latency import Latencies
from penstock.contracts import Extents, Numbers, Reader
from penstock.errors import BadSetting

if TYPE_CHECKING:
    from penstock.bench.measure.interval import Watch

_PART = 4
"""The loop waits for one part in so many of the reads that no thread has in hand, then begins as many anew."""

_MOST_BLOCKS = 1 << 22


class Figures(NamedTuple):
    """What a loop has read, and what that cost.

    Attributes:
        cpu_s: User and kernel time of this process, all threads.
        exhausted: Whether it ended because every block had been read.
    """

    ops: int
    elapsed_s: float
    cpu_s: float
    latencies: Latencies
    exhausted: bool


def places(nbytes: int, bs_bytes: int, pattern: str, seed: int) -> Numbers:
    """Return offsets of blocks in reading order, none twice.

    At most 4 million: a block is read again only after so many others.

    Raises:
        BadSetting: not one block fits into the file.
    """
    blocks = nbytes // bs_bytes
    if blocks == 0:
        raise BadSetting(f"a block of {bs_bytes:,} bytes does not fit into {nbytes:,} bytes")
    if pattern == "sequential":
        return np.arange(min(blocks, _MOST_BLOCKS)) * bs_bytes
    return np.random.default_rng(seed).choice(blocks, min(blocks, _MOST_BLOCKS), replace=False) * bs_bytes


def stride(bs_bytes: int) -> int:
    """Return the room in memory for one block, in whole pages."""
    return -(-bs_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


class Loop:
    """Keeps ``reader.depth`` reads of one file under way.

    Args:
        offsets: Offsets of the blocks, in reading order.
        threads: Threads of the reader that must always find reads waiting; 0 if it has none.
        once: Whether each block is read only once; else they are read over and over.
    """

    def __init__(
        self, reader: Reader, file: int, offsets: Numbers, bs_bytes: int, *, threads: int, once: bool
    ) -> None:
        depth = reader.depth
        self.under_way = 0
        self.latencies = Latencies()
        self._reader = reader
        self._batch = max(1, (depth - threads) // _PART)
        self._files, self._nbytes = np.full(depth, file), np.full(depth, bs_bytes)
        self._targets = np.arange(depth) * stride(bs_bytes)
        self._begun_s = np.zeros(depth)
        self._once = once
        # Reads that begin together are one slice.
        self._offsets = offsets if once else np.resize(offsets, len(offsets) + depth)
        self._period = len(offsets)
        self._at = 0

    def submit(self, slots: Numbers) -> None:
        """Begin to read the next blocks into these slots, as far as there are any."""
        if self._at >= self._period and not self._once:
            self._at -= self._period
        offsets = self._offsets[self._at : self._at + len(slots)]
        count = len(offsets)
        if count == 0:
            return
        slots = slots[:count]
        self._begun_s[slots] = time.perf_counter()
        extents = Extents(slots, self._files[:count], offsets, self._nbytes[:count], self._targets[slots])
        taken = self._reader.submit(extents)
        assert taken == count, "a slot that is free can be read into"
        self._at += count
        self.under_way += count

    def turn(self) -> int:
        """Wait for a batch of reads, begin as many anew, and return how many were done.

        Raises:
            ReadFailed: a read failed; the figures would mean nothing.
        """
        done = self._reader.completed(min(self._batch, self.under_way))
        if done.failures:
            raise next(iter(done.failures.values()))
        self.latencies.add(time.perf_counter() - self._begun_s[done.tags])
        self.under_way -= len(done.tags)
        self.submit(done.tags)
        return len(done.tags)


def measure(
    loop: Loop, depth: int, *, runtime_s: float, warm_up_s: float, watches: Sequence[Watch] = ()
) -> Figures:
    """Run a loop: warm up, then count and watch.

    Raises:
        ReadFailed: a read failed.
    """
    loop.submit(np.arange(depth))
    warm_s = time.perf_counter() + warm_up_s
    while loop.under_way and time.perf_counter() < warm_s:
        loop.turn()
    loop.latencies = Latencies()
    ops = 0
    for watch in watches:
        watch.begin()
    cpu_s, began_s = time.process_time(), time.perf_counter()
    now_s = began_s
    while loop.under_way and now_s - began_s < runtime_s:
        ops += loop.turn()
        now_s = time.perf_counter()
    cpu_s = time.process_time() - cpu_s
    for watch in watches:
        watch.end()
    return Figures(ops, now_s - began_s, cpu_s, loop.latencies, exhausted=not loop.under_way)
