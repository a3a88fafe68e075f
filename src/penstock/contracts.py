"""The seams of Penstock, one Protocol each; ``penstock.testing`` ships a test suite for each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Tree = Any
"""A block's or batch's tree: tuples, lists, dicts, namedtuples, dataclasses; leaves at the ends."""

ByteArray = npt.NDArray[np.uint8]


class Cursor(NamedTuple):
    """A position in a feed: the next sample of a cycle. Cursors compare in feed order."""

    cycle: int
    sample: int

    def after(self, rows: int, samples: int | None) -> Cursor:
        """The position ``rows`` rows on, where a cycle has ``samples``; within the cycle if that is unknown."""
        sample = self.sample + rows
        if samples is None:
            return Cursor(self.cycle, sample)
        return Cursor(self.cycle + sample // samples, sample % samples)

    def next_segment(self, starts: Sequence[int]) -> Cursor:
        """The first start of a segment at or after this position."""
        i = bisect_left(starts, self.sample)
        return Cursor(self.cycle, starts[i]) if i < len(starts) else Cursor(self.cycle + 1, 0)


class SourceBlock(NamedTuple):
    """What a source yields: ``rows`` samples of one cycle, the first of them number ``sample``."""

    sample: int
    rows: int
    tree: Tree


class Source(Protocol):
    """Where samples come from, pass after pass.

    A block never crosses the start of a segment, and block boundaries do not
    depend on where a cycle was opened. Every segment holds the same samples in
    every cycle.

    A source whose blocks are made by workers may also have
    ``fill(slots: penstock.memory.slots.Slots) -> int``: it is told, before it
    is opened, where blocks may be written that would be copied there else,
    gives such a block's ``Filled`` as its tree, and returns how many it has
    under way at once. When a pass is closed, no worker writes any more.
    """

    @property
    def description(self) -> str:
        """What it is, in a few words, for a person."""
        ...

    @property
    def samples(self) -> int | None:
        """Samples in a cycle; None when only a pass can tell."""
        ...

    @property
    def batches(self) -> int | None:
        """Blocks in a cycle, if the source says; a hint where ``samples`` is None."""
        ...

    @property
    def batch_size(self) -> int | None:
        """Rows of a full block; None when blocks have no usual size."""
        ...

    @property
    def segment_starts(self) -> tuple[int, ...]:
        """The first sample of each segment; ``(0,)`` when there is only one."""
        ...

    @property
    def seekable(self) -> bool:
        """Whether ``open`` reaches any position without reading what lies before it."""
        ...

    def open(self, at: Cursor) -> Iterator[SourceBlock]:
        """Yield the rest of cycle ``at.cycle``, beginning with the block that holds ``at.sample``.

        Closing the iterator early releases what it holds (workers, files).
        """
        ...

    def close(self) -> None:
        """Release what outlives a pass, such as workers that persist."""
        ...


class Ring(Protocol):
    """Bytes that one process writes and several read.

    It knows nothing of blocks: ``memory.room`` says which bytes are free, and
    the feed's roster who still reads them.
    """

    @property
    def kind(self) -> str:
        """The path taken, as ``statistics()`` names it: ``"host memfd"``."""
        ...

    @property
    def capacity_bytes(self) -> int:
        """The window."""
        ...

    def writable(self, offset: int, nbytes: int) -> ByteArray:
        """The feeder's view of a range. Only the process that made the ring may ask."""
        ...

    def readable(self, offset: int, nbytes: int) -> ByteArray:
        """A reader's view of a range; it keeps the mapping alive, not the bytes' meaning."""
        ...

    def close(self) -> None:
        """Give the mapping up; it goes when the last view of it does."""
        ...
