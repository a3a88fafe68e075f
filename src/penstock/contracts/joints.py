"""Joints: places in mid-cycle where epochs begin, and which of them are in force in which cycle."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from penstock.contracts.source import Cursor

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
        """Return the places that cut the cycle before this one, whose parts this one keeps together."""
        i = bisect_right(self.changes, cycle, key=lambda change: change[0])
        return self.changes[i - 1][1] if i else ()

    def then(self, cycle: int, places: Iterable[int]) -> Joints:
        """Return these and, from a cycle on that comes after the last change, these places."""
        new = tuple(sorted(set(places)))
        return self if new == self.of(cycle) else Joints((*self.changes, (cycle, new)))

    def deciding(self, cycle: int) -> Joints:
        """Return those of the changes that decide a cycle's order."""
        i = bisect_right(self.changes, cycle, key=lambda change: change[0]) - 1
        kept: list[tuple[int, Places]] = []
        while i >= 0 and self.changes[i][1]:
            kept.append(self.changes[i])
            places = set(self.changes[i][1])
            new = not i or not places <= set(self.changes[i - 1][1])
            i -= 1
            while not new and i and places <= set(self.changes[i - 1][1]):
                i -= 1  # parts that have only been joined since need no order between
        return _in_turn(reversed(kept))

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
        alive: Where epochs of live trainers began, which the next cycle to be opened keeps.
    """

    joints: Joints = NO_JOINTS
    opened: int = 0
    alive: Places = ()

    def may_begin(self, start: Cursor, always: Collection[int]) -> bool:
        """Whether an epoch from a place on holds every sample once; ``always`` are joints of each cycle."""
        sample, after = start.sample, start.cycle + 1
        return not sample or sample in always or after > self.opened or sample in self.joints.of(after)

    def fits(self, samples: int) -> bool:
        """Whether a feed of so many samples can know this: cycles and places rise, and there are not too many."""
        cycles = [cycle for cycle, _ in self.joints.changes]
        all_places = [self.alive, *(places for _, places in self.joints.changes)]
        return (
            len(cycles) <= MOST_CHANGES
            and all(len(places) <= MOST_JOINTS for places in all_places)
            and _rise((*cycles, _MOST_CYCLES + 1), 0)
            and 0 <= self.opened <= _MOST_CYCLES
            and all(_rise((*places, samples), 1) for places in all_places)
        )


def last_read(at: Cursor, epoch_start: Cursor) -> int:
    """Return the last cycle of which a trainer at this place has read: at a cycle's beginning, the one before."""
    return at.cycle - (at.cycle > epoch_start.cycle and not at.sample)


def _in_turn(changes: Iterable[tuple[int, Places]]) -> Joints:
    """Return these changes without those that change nothing."""
    joints = NO_JOINTS
    for cycle, places in changes:
        joints = joints.then(cycle, places)
    return joints


def _rise(numbers: Sequence[int], least: int) -> bool:
    return numbers[0] >= least and all(one < other for one, other in pairwise(numbers))
