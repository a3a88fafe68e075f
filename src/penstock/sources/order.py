"""The order in which a feed visits its samples: seeded, grouped by joints, equal on every machine."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.basics.sizes import random_seed, whole_number
from penstock.contracts import NO_JOINTS, Cursor, Ids, Joints, SourceBlock, Tree, Wanted
from penstock.errors import BadSetting

_PARTITION, _CYCLE = 0, 1
Base = Callable[[int], Ids]
"""From a cycle to its samples, in an order without joints."""


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
    way: Any = None  # what its source needs besides to load it

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
    """Cycles in random order, in which what lies between joints stays together.

    Every cycle is shuffled as a whole and then grouped, in that order, by where its samples
    lay in the cycle before: between which joints. Segments are joints that are in force for ever; so each has the
    same samples in every cycle, those that it has in the first.
    """

    def __init__(
        self,
        samples: int,
        batch_size: int,
        segments: int | None,  # how many to make, at most one for each block; None for one
        seed: int,  # any integer
        *,
        shuffle: bool,  # False for the data's own order
        sizes: Ids | None = None,
    ) -> None:
        if samples < 1:
            raise BadSetting(f"the source has {samples} samples, which make no batch of {batch_size}")
        self.batches = -(-samples // batch_size)  # blocks in a cycle
        segments = min(segments or 1, self.batches)
        self.samples = samples  # of a cycle, all of the data
        self.batch_size = batch_size  # rows of a block
        self._seed = seed % 2**64
        self.segment_starts = tuple(i * self.batches // segments * batch_size for i in range(segments))
        self.shuffled = shuffle  # whether they come in another order than that of the data
        self._sizes = sizes
        """Rows of each sample, if samples are groups of rows: joints lie at rows. None for one of each."""
        self._partition: Ids | None = None
        self._parts: dict[Joints, npt.NDArray[np.int16] | None] = {}
        drawn = self._seed if shuffle else None
        joined = ["joined"] if shuffle and segments > 1 else []  # segments were once shuffled each by itself
        self.digest = digest(samples, batch_size, self.segment_starts, drawn, *joined)
        """Digest of all that decides the order."""

    def ids(self, cycle: int, joints: Joints = NO_JOINTS, base: Base | None = None) -> Ids:
        """Return the samples of a cycle of shuffled data in their order."""
        base = base or self._drawn
        return _grouped(base(cycle), self._part_of_each(cycle, joints.deciding(cycle), base))

    def blocks(
        self, at: Cursor, joints: Joints = NO_JOINTS, base: Base | None = None
    ) -> Iterator[tuple[int, Ids]]:
        """Yield (first sample, indices) of each block of the cycle, from the one that holds ``at.sample`` on.

        ``base`` is None for an order that is drawn from the seed.
        """
        ids = self.ids(at.cycle, joints, base) if self.shuffled else None
        for start in range(at.sample // self.batch_size * self.batch_size, self.samples, self.batch_size):
            stop = min(start + self.batch_size, self.samples)
            yield start, np.arange(start, stop) if ids is None else ids[start:stop]

    def _drawn(self, cycle: int) -> Ids:
        if self._partition is None:
            self._partition = permutation(self.samples, self._seed, _PARTITION)
        return self._partition[permutation(self.samples, self._seed, _CYCLE, cycle, 0)]

    def _part_of_each(self, cycle: int, joints: Joints, base: Base) -> npt.NDArray[np.int16] | None:
        """Return the part of each sample, by what decides it, which is drawn once."""
        always = self.segment_starts[1:]
        if not cycle or not (joints.changes or always):
            return None
        if joints not in self._parts:
            part = _cut(joints, always, base, self._sizes)
            if len(self._parts) > 1:
                self._parts.pop(next(iter(self._parts)))
            self._parts[joints] = part
        return self._parts[joints]


def _cut(joints: Joints, always: tuple[int, ...], base: Base, sizes: Ids | None) -> npt.NDArray[np.int16] | None:
    before: set[int] = set()
    part: npt.NDArray[np.int16] | None = None
    for since, places in [(1, ()), *joints.changes] if always else joints.changes:
        now = sorted({*places, *always})
        if before.issuperset(now):  # parts are joined, and so no order is needed
            starts = np.array((0, *sorted(before)))
            part = None if part is None else np.searchsorted(now, starts, "right").astype(np.int16)[part]
        else:
            last = _grouped(base(since - 1), part)
            rows = np.arange(len(last)) if sizes is None else np.cumsum(sizes[last]) - sizes[last]
            part = np.empty(len(last), np.int16)
            part[last] = np.searchsorted(now, rows, "right")
        before = set(now)
    return part


def _grouped(ids: Ids, part: npt.NDArray[np.int16] | None) -> Ids:
    return ids if part is None else ids[np.argsort(part[ids], kind="stable")]


class Ordered(ABC):
    """A source that visits its samples in an ``Order``; the attributes are those of ``Source``."""

    seekable = True
    selects = True
    joins = True

    def open(self, at: Cursor, wanted: Wanted | None = None, joints: Joints = NO_JOINTS) -> Iterator[SourceBlock]:
        return self.load(self.plans(at, wanted, joints), at.cycle)

    def plans(self, at: Cursor, wanted: Wanted | None = None, joints: Joints = NO_JOINTS) -> Iterator[Planned]:
        return planned(self._order.blocks(at, joints), wanted)

    @abstractmethod
    def load(self, plans: Iterator[Planned], cycle: int) -> Iterator[SourceBlock]: ...

    def work_here(self) -> None:  # noqa: B027 - few have workers
        """Load in this process from now on: as it does, unless it has workers."""

    def _visit(
        self,
        samples: int,
        batch_size: int,
        segments: int | None,
        seed: int,
        *,
        shuffle: bool,
        drop_last: bool,
    ) -> None:
        batch_size = whole_number("batch_size", batch_size, 1, 2**31 - 1)
        if segments is not None:
            segments = whole_number("segments", segments, 1)
        order = Order(samples, batch_size, segments, random_seed(seed), shuffle=shuffle)
        self._follow(order, drop_last=drop_last)

    def _follow(self, order: Any, *, drop_last: bool) -> None:
        """Take over what is known of an order, also of one that has epochs begin at some places only."""
        self._order, self.drop_last = order, drop_last
        self.batch_size: int = order.batch_size
        self.shuffled: bool = order.shuffled
        self.samples: int = order.samples
        self.batches: int = order.batches
        self.segment_starts: tuple[int, ...] = order.segment_starts
        if hasattr(order, "starts"):
            self.starts = order.starts
