"""What can be fed: positions, blocks, and the source that yields them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from penstock.contracts.arrays import Ids

Tree = Any
"""A block's or batch's tree: tuples, lists, mappings, namedtuples, dataclasses; leaves at the ends."""


class Cursor(NamedTuple):
    """A position in a feed: the next sample of a cycle. Cursors compare in feed order."""

    cycle: int
    sample: int

    def after(self, rows: int, samples: int | None) -> Cursor:
        """Return the position ``rows`` rows on in cycles of ``samples``; in this cycle if that is None."""
        sample = self.sample + rows
        if samples is None:
            return Cursor(self.cycle, sample)
        return Cursor(self.cycle + sample // samples, sample % samples)

    def next_segment(self, starts: Sequence[int]) -> Cursor:
        """Return the first start of a segment at or after this position."""
        i = bisect_left(starts, self.sample)
        return Cursor(self.cycle, starts[i]) if i < len(starts) else Cursor(self.cycle + 1, 0)


class SourceBlock(NamedTuple):
    """What a source yields: ``rows`` samples of one cycle, the first of which is number ``sample``.

    Attributes:
        ids: Which samples of the data set the tree holds; None if the source does not know.
        kept: Which of the rows these are, rising; None for all. With none of them, the tree is None.
    """

    sample: int
    rows: int
    tree: Tree
    ids: Ids | None = None
    kept: Ids | None = None

    @property
    def stored(self) -> int:
        """How many samples the tree holds."""
        return self.rows if self.kept is None else len(self.kept)


Wanted = Callable[[int, Ids], npt.NDArray[np.bool_] | None]
"""Says, of a block's first sample and the ids of its rows, which of these are wanted; None for all."""


class Source(Protocol):
    """Where samples come from, pass after pass.

    A block never crosses the start of a segment, and block boundaries do not
    depend on where a cycle was opened. A segment's samples are fixed; only their
    order may change from cycle to cycle.

    What a cycle gives, and in which order, depends on the cycle (and its joints) alone, not on
    what was opened before or in which process: a feeder that replaces another
    goes on within it.

    A source whose blocks are made by workers may be a ``penstock.memory.slots.SlotSource`` too.
    Two more attributes are optional:

    - ``drop_last: bool``, by default False: every sample is in the cycle, and
      each trainer leaves out of each of its epochs what does not fill one of
      its batches.
    - ``order: str``, by default empty: a short digest of what decides the
      order, equal in every process. Feeds with different digests do not
      continue one another.

    A source with a third one, ``selects = True``, names its samples (``SourceBlock.ids``,
    from 0 to ``samples`` - 1, each once a cycle), and its ``open(at, wanted)`` loads of
    each block only what is wanted. It asks once a block, in order, when it plans to load it.

    In a source with ``joins = True`` epochs may begin at any block: its ``open(at, wanted, joints)`` keeps
    together what lies between the joints in force (``Joints``). Blocks are full but for a cycle's last one.
    Where ``shuffled`` is False, each cycle has one order, which needs no joints.

    A random draw depends on the cycle and on the place in it, and where some is left out also on what that is:
    feeders open cycles anew, beside others, and no sample may get a draw that another has had.
    """

    @property
    def description(self) -> str:
        """The source in a few words, for a person."""
        ...

    @property
    def samples(self) -> int | None:
        """Samples in a cycle; None if only a pass can tell."""
        ...

    @property
    def batches(self) -> int | None:
        """Blocks in a cycle, if the source says; only a hint if ``samples`` is None."""
        ...

    @property
    def batch_size(self) -> int | None:
        """Rows of a full block; None if blocks have no usual size."""
        ...

    @property
    def segment_starts(self) -> tuple[int, ...]:
        """The first sample of each segment; ``(0,)`` if there is only one."""
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
