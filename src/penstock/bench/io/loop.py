"""The measured loop, which has a number of reads under way at all times, and the percentiles of their times."""

from __future__ import annotations

import math
import mmap
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.contracts import Extents, Numbers, Reader
from penstock.errors import BadSetting

if TYPE_CHECKING:
    from penstock.bench.measure.rates import IntervalWatch


_STEP = 0.01  # a bucket is 1% wider than the one before
_LEAST_S = 1e-7
_BUCKETS = int(math.log(1e10) / math.log1p(_STEP))  # up to 1,000 s
_MOST_UNSORTED = 1 << 16


class Latencies:
    """A histogram of times in buckets 1% apart; times are sorted in many at once."""

    def __init__(self) -> None:
        self._unsorted = np.empty(_MOST_UNSORTED)
        self._count = 0
        self._buckets = np.zeros(_BUCKETS, np.int64)

    def add(self, times_s: npt.NDArray[np.float64]) -> None:
        """Add some times."""
        assert len(times_s) <= _MOST_UNSORTED
        if self._count + len(times_s) > _MOST_UNSORTED:
            self._sort()
        self._unsorted[self._count : self._count + len(times_s)] = times_s
        self._count += len(times_s)

    def percentiles_us(self, *ranks: float) -> tuple[float | None, ...]:
        """Return percentiles for these ranks (0 to 1), in microseconds; None if there are no times."""
        self._sort()
        below = np.cumsum(self._buckets)
        if below[-1] == 0:
            return (None,) * len(ranks)
        found = np.searchsorted(below, [max(1, math.ceil(rank * below[-1])) for rank in ranks])
        return tuple(round(1e6 * _LEAST_S * (1 + _STEP) ** (float(i) + 0.5), 2) for i in found)

    def _sort(self) -> None:
        ratios = np.maximum(self._unsorted[: self._count] / _LEAST_S, 1.0)
        buckets = (np.log(ratios) / math.log1p(_STEP)).astype(np.int64)
        self._buckets += np.bincount(np.minimum(buckets, _BUCKETS - 1), minlength=_BUCKETS)
        self._count = 0


_PART = 4
"""The loop waits for a quarter of the reads that no thread works on, then begins as many anew."""

_MOST_BLOCKS = 1 << 22


class Figures(NamedTuple):
    """What a loop has read, and what that cost."""

    ops: int
    elapsed_s: float
    cpu_s: float  # user and kernel time of this process, all threads
    latencies: Latencies
    exhausted: bool  # whether it ended because every block had been read


def places(nbytes: int, bs_bytes: int, pattern: str, seed: int) -> Numbers:
    """Return offsets of blocks in reading order, none twice.

    At most 4 million: a block is read again only after all others.
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


class ReadLoop:
    """Has as many reads of one file under way at all times as the reader takes, ``reader.depth`` at most.

    Args:
        offsets: Offsets of the blocks, in reading order.
        threads: Threads of the reader that must always find reads waiting; 0 if it has none.
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
        self._refused = np.array([], np.int64)
        self._once = once  # whether each block is read only once; else they are read over and over
        # Reads that begin together are one slice.
        self._offsets = offsets if once else np.resize(offsets, len(offsets) + depth)
        self._period = len(offsets)
        self._at = 0

    def submit(self, slots: Numbers) -> None:
        """Begin to read the next blocks into these slots, and those refused before, as far as there are any."""
        if len(self._refused):
            slots = np.concatenate([self._refused, slots])
        if self._at >= self._period and not self._once:
            self._at -= self._period
        offsets = self._offsets[self._at : self._at + len(slots)]
        count = len(offsets)
        if count == 0:
            return
        slots = slots[:count]
        self._begun_s[slots] = time.perf_counter()
        extents = Extents(slots, self._files[:count], offsets, self._nbytes[:count], self._targets[slots])
        taken = self._reader.submit(extents)  # fewer, if what it reads through is full
        self._refused = slots[taken:]
        self._at += taken
        self.under_way += taken
        assert self.under_way, "a reader takes at least one"

    def turn(self) -> int:
        """Wait for a batch of reads, begin as many anew, and return how many were done."""
        done = self._reader.completed(min(self._batch, self.under_way))
        if done.failures:
            raise next(iter(done.failures.values()))
        self.latencies.add(time.perf_counter() - self._begun_s[done.tags])
        self.under_way -= len(done.tags)
        self.submit(done.tags)
        return len(done.tags)


def measure(
    loop: ReadLoop, depth: int, *, runtime_s: float, warm_up_s: float, watches: Sequence[IntervalWatch] = ()
) -> Figures:
    """Run a loop: warm up, then count and watch."""
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
