"""The order in which a feed visits its samples: seeded, segmented, equal on every machine."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from penstock.contracts import Cursor, Ids, SourceBlock, Tree, Wanted
from penstock.errors import BadSetting
from penstock.sizes import random_seed, whole_number

_PARTITION, _CYCLE = 0, 1

_SEGMENTS = 16
_SAMPLES_OF_A_SEGMENT = 16_000
"""Shuffling within fewer samples, in one order of segments every cycle, costs accuracy (decision 14)."""


def permutation(n: int, *words: int) -> Ids:
    """Draw a random order of ``range(n)`` that depends on ``words`` alone.

    It sorts the raw words of PCG64, which are fixed across versions of NumPy
    (NEP 19); its ``permutation`` is not.
    """
    keys = np.random.PCG64(np.random.SeedSequence(words)).random_raw(n)
    return np.argsort(keys, kind="stable").astype(np.int64)


class Planned(NamedTuple):
    """A block that is to be loaded; the attributes are those of ``SourceBlock``."""

    sample: int
    rows: int
    ids: Ids
    kept: Ids | None

    def block(self, tree: Tree) -> SourceBlock:
        """Return the block, once it is loaded."""
        return SourceBlock(self.sample, self.rows, tree, self.ids, self.kept)


def planned(blocks: Iterable[tuple[int, Ids]], wanted: Wanted | None) -> Iterator[Planned]:
    """Plan blocks of (first sample, ids), each with those of its rows that are wanted when it is asked for."""
    for sample, ids in blocks:
        mask = None if wanted is None else wanted(sample, ids)
        if mask is None or mask.all():
            yield Planned(sample, len(ids), ids, None)
        else:
            kept = np.flatnonzero(mask)
            yield Planned(sample, len(ids), ids[kept], kept)


def digest(*parts: Any) -> str:
    """Digest plain values into a short name that every process on every machine would compute."""
    return hashlib.sha256(repr(parts).encode(errors="surrogatepass")).hexdigest()[:16]


class Order:
    """Cycles of S segments, each a whole number of blocks but for the last one's last.

    A segment is a fixed random part of the data (a fixed range, unless
    ``shuffle``). Every cycle visits the segments in one order and shuffles
    afresh inside each, so any S consecutive segments hold every sample once.

    Args:
        samples: Size of the data.
        batch_size: Rows of a block.
        segments: How many to make, at most one for each block. None makes 16; of data that is shuffled, at most
            one for each 16,000 samples.
        seed: Any integer.
        shuffle: False keeps the data's own order.

    Attributes:
        samples: Samples in a cycle.
        batches: Blocks in a cycle.
        digest: Digest of all that decides the order.
    """

    def __init__(self, samples: int, batch_size: int, segments: int | None, seed: int, *, shuffle: bool) -> None:
        if samples < 1:
            raise BadSetting(f"the source has {samples} samples, which make no batch of {batch_size}")
        self.batches = -(-samples // batch_size)
        if segments is None:
            segments = min(_SEGMENTS, max(1, samples // _SAMPLES_OF_A_SEGMENT)) if shuffle else _SEGMENTS
        segments = min(segments, self.batches)
        self.samples = samples
        self.batch_size = batch_size
        self._seed = seed % 2**64
        self.segment_starts = tuple(i * self.batches // segments * batch_size for i in range(segments))
        self._members = permutation(samples, self._seed, _PARTITION) if shuffle else None
        self.digest = digest(samples, batch_size, self.segment_starts, self._seed if shuffle else None)

    def segment(self, cycle: int, i: int) -> Ids:
        """Return the samples of segment ``i`` in the order of this cycle."""
        start = self.segment_starts[i]
        stop = (*self.segment_starts, self.samples)[i + 1]
        if self._members is None:
            return np.arange(start, stop)
        return self._members[start:stop][permutation(stop - start, self._seed, _CYCLE, cycle, i)]

    def blocks(self, at: Cursor) -> Iterator[tuple[int, Ids]]:
        """Yield (first sample, indices) of each block of the cycle, from the one that holds ``at.sample`` on."""
        first = bisect_right(self.segment_starts, at.sample) - 1
        for i in range(first, len(self.segment_starts)):
            start, indices = self.segment_starts[i], self.segment(at.cycle, i)
            skipped = max(0, at.sample - start) // self.batch_size * self.batch_size
            for offset in range(skipped, len(indices), self.batch_size):
                yield start + offset, indices[offset : offset + self.batch_size]


class Ordered:
    """A source that visits its samples in an ``Order``; the attributes are those of ``Source``."""

    seekable = True
    selects = True

    def _visit(
        self, samples: int, batch_size: int, segments: int | None, seed: int, *, shuffle: bool, drop_last: bool
    ) -> None:
        self.batch_size = whole_number("batch_size", batch_size, 1, 2**31 - 1)
        if segments is not None:
            segments = whole_number("segments", segments, 1)
        self._order = Order(samples, self.batch_size, segments, random_seed(seed), shuffle=shuffle)
        self.samples = samples
        self.batches = self._order.batches
        self.segment_starts = self._order.segment_starts
        self.drop_last = drop_last
