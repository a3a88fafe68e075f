"""The measured loop: so many reads under way, as long as it takes."""

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
    from penstock.measure.interval import Watch

_PART = 4
"""The loop waits for this part of what nobody has in hand, then begins as many again with one call."""

_MOST_BLOCKS = 1 << 22


class Figures(NamedTuple):
    """What a loop moved, and what that cost.

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
    """Offsets of blocks in the order in which they are read; none twice.

    Of a file of more than 4 million blocks, so many: what was read does not
    come again before as many others have.

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
    """The room in memory for one block: it begins on a page."""
    return -(-bs_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


class Loop:
    """Keeps ``reader.depth`` reads of one file under way.

    Args:
        offsets: Of the blocks, in the order in which they are read.
        threads: Of the reader, that must find reads waiting for them; 0 where it has none.
        once: Each block is read once; otherwise they begin again.
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
        # Whatever is begun together is one slice.
        self._offsets = offsets if once else np.resize(offsets, len(offsets) + depth)
        self._period = len(offsets)
        self._at = 0

    def submit(self, slots: Numbers) -> None:
        """Read the next blocks into these slots, as far as there are any."""
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
        """Wait for a batch, begin as many again, and say how many were done.

        Raises:
            ReadFailed: one failed; the figures would mean nothing.
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
    """Run a loop: first to warm up, then counted and watched.

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
