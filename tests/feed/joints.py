"""A model of joints (decision 24): places in mid-cycle where epochs begin, and parts that cycles keep for them.

An epoch that begins at a joint ends there a cycle later. So that it has held every sample once, the cycles keep
together what lies before the joint: each is the loader's own order, grouped by the parts that the joints in force
cut the cycle before into. Without joints a cycle is the loader's own order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.contracts import Cursor, Ids

Places = tuple[int, ...]


class Joints(NamedTuple):
    """Which joints are in force in which cycles.

    Attributes:
        changes: Cycles, rising, and the places in force from each on, until the next; none before the first.

    >>> Joints(((3, (640,)), (7, ()))).of(5)
    (640,)
    """

    changes: tuple[tuple[int, Places], ...] = ()

    def of(self, cycle: int) -> Places:
        """Return the places that cut the cycle before this one, whose parts this one keeps."""
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

    def fit(self, samples: int) -> bool:
        """Whether cycles and places rise, and lie in cycles of so many samples."""
        cycles = [cycle for cycle, _ in self.changes]
        return cycles == sorted(set(cycles)) and all(
            list(places) == sorted(set(places)) and 0 < min(places, default=1) and max(places, default=0) < samples
            for _, places in self.changes
        )

    def since(self, cycle: int) -> Joints:
        """Return what decides the orders of a cycle and of all later ones."""
        later = (change for change in self.changes if change[0] > cycle)
        return _in_turn((*self.deciding(cycle).changes, *later))


NO_JOINTS = Joints()


def _in_turn(changes: Iterable[tuple[int, Places]]) -> Joints:
    """Return these changes without those that change nothing."""
    joints = NO_JOINTS
    for cycle, places in changes:
        joints = joints.then(cycle, places)
    return joints


def begins(start: Cursor, joints: Joints, opened: int, always: Collection[int]) -> bool:
    """Whether an epoch that begins at a place ends there a cycle later, under these joints."""
    sample, after = start.sample, start.cycle + 1
    return not sample or sample in always or after > opened or sample in joints.of(after)


class Parts:
    """The parts of cycles, drawn once for each set of joints.

    Args:
        base: Returns the loader's own order of a cycle.
        always: Joints that are in force in every cycle.
    """

    def __init__(self, base: Callable[[int], Ids], always: Places) -> None:
        self._base = base
        self._always = always
        self._known: dict[Joints, npt.NDArray[np.int16] | None] = {}

    def order(self, cycle: int, joints: Joints) -> Ids:
        """Return the samples of a cycle in their order."""
        return _grouped(self._base(cycle), self._parts(joints.deciding(cycle), cycle))

    def _parts(self, joints: Joints, cycle: int) -> npt.NDArray[np.int16] | None:
        """Return the part of each sample, by what decides it."""
        changes = joints.changes
        if not cycle or not (changes or self._always):
            return None
        if joints not in self._known:
            part = self._cut(changes)
            if len(self._known) > 1:
                self._known.pop(next(iter(self._known)))
            self._known[joints] = part
        return self._known[joints]

    def _cut(self, changes: Iterable[tuple[int, Places]]) -> npt.NDArray[np.int16] | None:
        before: set[int] = set()
        part: npt.NDArray[np.int16] | None = None
        for since, places in [(1, ()), *changes] if self._always else changes:
            now = sorted({*places, *self._always})
            if before.issuperset(now):
                starts = np.array((0, *sorted(before)))
                part = None if part is None else np.searchsorted(now, starts, "right").astype(np.int16)[part]
            else:
                last = _grouped(self._base(since - 1), part)
                part = np.empty(len(last), np.int16)
                part[last] = np.searchsorted(now, np.arange(len(last)), "right")
            before = set(now)
        return part


def _grouped(ids: Ids, part: npt.NDArray[np.int16] | None) -> Ids:
    return ids if part is None else ids[np.argsort(part[ids], kind="stable")]


_MOST_CHANGES = 256
"""Changes that decide an order, at most."""
_MOST_PLACES = 64
"""Joints in force at one time, at most."""
_MOST = 15
"""Joints at one time: more of them cost accuracy, as fewer rows are shuffled together."""


class FeedJoints:
    """The joints of a feed, cycle by cycle. What is in force in a cycle is fixed when that is opened.

    Args:
        samples: Samples of a cycle.
        always: Joints in force in every cycle: where its segments begin.

    Attributes:
        joints: What is in force, up to ``opened``.
        opened: The last cycle that was opened.
        samples: Samples of a cycle.
    """

    def __init__(self, samples: int, always: Collection[int]) -> None:
        self.joints = NO_JOINTS
        self.opened = 0
        self.samples = samples
        self._always = frozenset(always)
        self._inherited: frozenset[int] = frozenset()  # of trainers who read from another feeder, and may yet come

    def open(self, cycle: int, began: Collection[int]) -> bool:
        """Fix what is in force in a cycle, and in those before; return whether that was open.

        Args:
            cycle: The cycle.
            began: Where in their cycles the epochs of live trainers began.
        """
        if cycle <= self.opened:
            return False
        self.joints = self.joints.then(self.opened + 1, self._alive(began))
        self.opened = cycle
        return True

    def may_begin(self, at: Cursor) -> bool:
        """Whether the epoch of somebody who was there before may begin at a place."""
        return begins(at, self.joints, self.opened, self._always)

    def since(self, cycle: int) -> Joints:
        """Return what trainers must know whose epochs began in this cycle, or later."""
        return self.joints.since(min(cycle, self.opened))

    def is_place(self, at: Cursor, began: Collection[int], apart: int, oldest: int = 0) -> bool:
        """Whether a newcomer's epoch may begin at a place.

        Args:
            at: The place.
            began: Where in their cycles the epochs of live trainers began.
            apart: Rows that lie at least between two joints, and between one and a cycle's ends.
            oldest: The first cycle in which an epoch of a live trainer began.
        """
        alive = self._alive(began)
        if at.sample and at.sample not in alive | self._always:
            edges = {0, self.samples, *alive, *self._always}
            if min(abs(at.sample - edge) for edge in edges) < apart or len(alive) >= _MOST:
                return False
            if len(self.since(oldest).changes) >= _MOST_CHANGES:
                return False
        return self.may_begin(at)

    def admit(self, at: Cursor, start: Cursor, known: Joints, opened: int, began: Collection[int]) -> bool:
        """Let a trainer go on with an epoch that began under another feeder, if this feed's order allows it.

        Where this feed has not come yet, its joints become those that the trainer knows.

        Args:
            at: Where the trainer stands.
            start: Where its epoch began.
            known: The joints that were in force there, up to the cycle ``opened``.
            opened: The last cycle that the trainer knows of.
            began: Where in their cycles the epochs of other live trainers began.
        """
        if len(self._alive([*began, start.sample])) > _MOST_PLACES:
            return False
        # At a cycle's beginning what has been read of the one before matters, and nothing of this one.
        cycle = at.cycle - (at.cycle > start.cycle and not at.sample)
        merged = self._merged(cycle, known, opened, self._alive(began))
        if merged is None:
            return at == start and self.may_begin(start)
        joints, until = merged
        if not begins(start, joints, until, self._always):
            return False
        inherited = self._inherited.union(joints.of(until))
        changes = joints.since(min(start.cycle, until)).changes
        if len(inherited) > _MOST_PLACES - _MOST or len(changes) >= _MOST_CHANGES:
            return False
        if until > self.opened:
            self.joints, self.opened, self._inherited = joints, until, inherited
        return True

    def _merged(self, cycle: int, known: Joints, opened: int, alive: Collection[int]) -> tuple[Joints, int] | None:
        """Return what is in force if what a trainer knows follows on this; None if the two contradict."""
        joints, until = self.joints, self.opened
        while until < opened and (places := set(known.of(until + 1))).issuperset(alive):
            joints = joints.then(until + 1, places)
            later = (since for since, _ in known.changes if since > until + 1)
            until = min(opened, next(later, opened + 1) - 1)
        if until < cycle or joints.deciding(cycle) != known.deciding(cycle):
            return None
        return joints, until

    def _alive(self, began: Collection[int]) -> frozenset[int]:
        return self._inherited.union(began) - self._always - {0}
