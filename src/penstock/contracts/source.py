"""What can be fed: positions, blocks, the source that yields them, and joints, where epochs begin in mid-cycle."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from penstock.contracts.memory import Ids
from penstock.contracts.streams import Column, CycleBegin, begins_fit, columns_fit

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
    """What a source yields: ``rows`` samples of one cycle, from number ``sample`` on.

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
    from 0 to ``samples`` - 1, each once a cycle), and its ``open(at, wanted)`` loads
    only the wanted part of each block. It asks once a block, in order, when it plans to load it.

    In a source with ``joins = True`` epochs may begin at any block: its ``open(at, wanted, joints)`` leaves
    together what lies between the joints in force (``Joints``). Blocks are full but for a cycle's last one.
    Where ``shuffled`` is False, each cycle has one order, which needs no joints. A source with a function
    ``starts(cycle, joints)`` has epochs begin only at those places of a cycle, rising from 0 on, and its blocks
    are full but for the last one before each.

    A random draw depends on the cycle and on the place in it, and, where samples are left out, on which:
    feeders open cycles anew, beside others, and no sample may get a draw that another has had.
    """

    @property
    def description(self) -> str:
        """The source in a few words, for a person."""
        ...

    @property
    def samples(self) -> int | None:
        """Samples in a cycle; None if only a pass shows it."""
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


Places = tuple[int, ...]
MOST_JOINTS = 64
"""Most joints in force in one cycle."""
MOST_CHANGES = 256
"""Most changes of joints that decide a cycle's order."""
_MOST_CYCLES = 10**9


class Joints(NamedTuple):
    """Which joints are in force in which cycles.

    An epoch that begins at a joint ends there a cycle later. So that it holds every sample once, each cycle is the
    loader's own order, grouped by the parts that the joints in force cut the cycle before into.

    Attributes:
        changes: Cycles, rising, and the places in force from each on, until the next; none before the first.

    >>> Joints(((3, (640,)), (7, ()))).of(5)
    (640,)
    """

    changes: tuple[tuple[int, Places], ...] = ()

    def of(self, cycle: int) -> Places:
        """Return the places that cut the cycle before this one into the parts that stay together in this one."""
        i = bisect_right(self.changes, cycle, key=lambda change: change[0])
        return self.changes[i - 1][1] if i else ()

    def then(self, cycle: int, places: Iterable[int]) -> Joints:
        """Return these and, from a cycle on that comes after the last change, these places."""
        new = tuple(sorted(set(places)))
        return self if new == self.of(cycle) else Joints((*self.changes, (cycle, new)))

    def deciding(self, cycle: int) -> Joints:
        """Return those of the changes that decide a cycle's order."""
        i = bisect_right(self.changes, cycle, key=lambda change: change[0]) - 1
        found: list[tuple[int, Places]] = []
        while i >= 0 and self.changes[i][1]:
            found.append(self.changes[i])
            places = set(self.changes[i][1])
            new = not i or not places <= set(self.changes[i - 1][1])
            i -= 1
            while not new and i and places <= set(self.changes[i - 1][1]):
                i -= 1  # parts that have only been joined since need no order between
        return _in_turn(reversed(found))

    def since(self, cycle: int) -> Joints:
        """Return what decides the orders of a cycle and of all later ones."""
        later = (change for change in self.changes if change[0] > cycle)
        return _in_turn((*self.deciding(cycle).changes, *later))


NO_JOINTS = Joints()


class Known(NamedTuple):
    """What a trainer or a feeder knows of joints.

    Attributes:
        joints: Those in force, up to the last cycle that was opened.
        opened: That cycle.
        alive: Where epochs of live trainers began: joints of the next cycle to be opened, too.
        cycles: Of a stream: where cycles begin, from that of the trainer's epoch to the newest that is known.
        columns: Of a stream: the leaves of its rows.
    """

    joints: Joints = NO_JOINTS
    opened: int = 0
    alive: Places = ()
    cycles: tuple[CycleBegin, ...] = ()
    columns: tuple[Column, ...] = ()

    def read_on(self, at: Cursor, epoch_start: Cursor) -> Known:
        """Return what is known where an epoch is read on: the cycles that it has read from were opened."""
        return self if at == epoch_start else self._replace(opened=max(self.opened, last_read(at, epoch_start)))

    def after(self, before: Known) -> Known:
        """Return what is known once this has been heard, too: of a stream, more cycles."""
        cycles = {each.cycle: each for each in (*before.cycles, *self.cycles)}
        known = tuple(cycles[cycle] for cycle in sorted(cycles))
        return self._replace(cycles=known, columns=self.columns or before.columns)

    def since(self, cycle: int) -> Known:
        """Return it without a stream's cycles before one."""
        return self._replace(cycles=tuple(each for each in self.cycles if each.cycle >= cycle))

    def may_begin(self, start: Cursor, always: Collection[int], *, at_joints: bool = False) -> bool:
        """Whether an epoch from a place on holds every sample once.

        Args:
            start: The place.
            always: Joints of each cycle.
            at_joints: Whether epochs begin at some places of a cycle only; its joints are known to be such.
        """
        sample, after = start.sample, start.cycle + 1
        if not sample or sample in always:
            return True
        if at_joints and sample not in self.joints.of(start.cycle):
            return False
        return after > self.opened or sample in self.joints.of(after)

    def fits(self, samples: int) -> bool:
        """Whether a feed of ``samples`` samples can know this: cycles and places rise, and are not too many."""
        cycles = [cycle for cycle, _ in self.joints.changes]
        all_places = [self.alive, *(places for _, places in self.joints.changes)]
        return (
            len(cycles) <= MOST_CHANGES
            and all(len(places) <= MOST_JOINTS for places in all_places)
            and _rise((*cycles, _MOST_CYCLES + 1), 0)
            and 0 <= self.opened <= _MOST_CYCLES
            and all(_rise((*places, samples), 1) for places in all_places if places)
            and begins_fit(self.cycles)
            and columns_fit(self.columns)
        )


def last_read(at: Cursor, epoch_start: Cursor) -> int:
    """Return the last cycle that a trainer at this place has read from: at a cycle's beginning, the one before."""
    return at.cycle - (at.cycle > epoch_start.cycle and not at.sample)


def _in_turn(changes: Iterable[tuple[int, Places]]) -> Joints:
    """Return these changes without those that change nothing."""
    joints = NO_JOINTS
    for cycle, places in changes:
        joints = joints.then(cycle, places)
    return joints


def _rise(numbers: Sequence[int], least: int) -> bool:
    return numbers[0] >= least and all(one < other for one, other in pairwise(numbers))
