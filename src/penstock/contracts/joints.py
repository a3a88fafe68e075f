"""Joints: places in mid-cycle where epochs begin, and which of them are in force in which cycle."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable
from typing import NamedTuple

from penstock.contracts.source import Cursor

Places = tuple[int, ...]


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

    def fit(self, samples: int) -> bool:
        """Whether cycles and places rise, and lie in cycles of so many samples."""
        cycles = [cycle for cycle, _ in self.changes]
        return cycles == sorted(set(cycles)) and all(
            list(places) == sorted(set(places)) and 0 < min(places, default=1) and max(places, default=0) < samples
            for _, places in self.changes
        )


NO_JOINTS = Joints()


class Known(NamedTuple):
    """What a trainer or a feeder knows of joints: those in force up to the last cycle that was opened."""

    joints: Joints = NO_JOINTS
    opened: int = 0

    def may_begin(self, start: Cursor, always: Collection[int]) -> bool:
        """Whether an epoch from a place on holds every sample once; ``always`` are joints of each cycle."""
        sample, after = start.sample, start.cycle + 1
        return not sample or sample in always or after > self.opened or sample in self.joints.of(after)


def _in_turn(changes: Iterable[tuple[int, Places]]) -> Joints:
    """Return these changes without those that change nothing."""
    joints = NO_JOINTS
    for cycle, places in changes:
        joints = joints.then(cycle, places)
    return joints
