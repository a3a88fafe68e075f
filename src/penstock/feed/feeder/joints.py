"""The joints of a feed: where epochs may begin, and which joints are in force in which cycle (decision 24).

Pure: a model of feeders and trainers in random histories drives it (``tests/feed/test_joints.py``).
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.contracts import NO_JOINTS, Cursor, Joints, Known
from penstock.feed.settings import MOST_JOINT_CHANGES, MOST_JOINTS

_MOST_NEW = 15
"""Newcomers make no more joints than these: more of them cost accuracy, as fewer rows are shuffled together."""
APART_BATCHES = 20
"""Batches of the largest trainer between two joints: 20 cost no accuracy, 5 cost half a point (decision 14)."""


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
        """Fix what is in force in a cycle, and in those before; return whether that is news to trainers.

        Args:
            cycle: The cycle.
            began: Where in their cycles the epochs of live trainers began.
        """
        if cycle <= self.opened:
            return False
        before, self.joints = self.joints, self.joints.then(self.opened + 1, self._alive(began))
        self.opened = cycle
        return self.joints is not before

    def may_begin(self, at: Cursor) -> bool:
        """Whether the epoch of somebody who was there before may begin at a place."""
        return Known(self.joints, self.opened).may_begin(at, self._always)

    def since(self, cycle: int) -> Known:
        """Return what trainers must know whose epochs began in this cycle, or later."""
        return Known(self.joints.since(min(cycle, self.opened)), self.opened)

    def is_joint(self, at: Cursor, began: Collection[int]) -> bool:
        """Whether an epoch may begin at a place where others have begun, or where a cycle or a segment begins."""
        return at.sample in self._alive(began) | self._always | {0} and self.may_begin(at)

    def is_place(self, at: Cursor, began: Collection[int], apart: int, oldest: int = 0) -> bool:
        """Whether a newcomer's epoch may begin at a place.

        Args:
            at: The place.
            began: Where in their cycles the epochs of live trainers began.
            apart: Rows that lie at least between two joints, and between one and a cycle's ends.
            oldest: The first cycle in which an epoch of a live trainer began.
        """
        if self.is_joint(at, began):
            return True
        alive = self._alive(began)
        if at.sample and at.sample not in alive | self._always:
            edges = {0, self.samples, *alive, *self._always}
            if min(abs(at.sample - edge) for edge in edges) < apart or len(alive) >= _MOST_NEW:
                return False
            if len(self.since(oldest).joints.changes) >= MOST_JOINT_CHANGES:
                return False
        return self.may_begin(at)

    def admit(self, at: Cursor, start: Cursor, known: Known, began: Collection[int]) -> bool:
        """Let a trainer go on with an epoch that began under another feeder, if this feed's order allows it.

        Where this feed has not come yet, its joints become those that the trainer knows.

        Args:
            at: Where the trainer stands.
            start: Where its epoch began.
            known: What the trainer knows of the joints that were in force there.
            began: Where in their cycles the epochs of other live trainers began.
        """
        if len(self._alive([*began, start.sample])) > MOST_JOINTS:
            return False
        # At a cycle's beginning what has been read of the one before matters, and nothing of this one.
        cycle = at.cycle - (at.cycle > start.cycle and not at.sample)
        merged = self._merged(cycle, known, self._alive(began))
        if merged is None:
            return at == start and self.may_begin(start)
        joints, until = merged
        if not Known(joints, until).may_begin(start, self._always):
            return False
        inherited = self._inherited.union(joints.of(until))
        changes = joints.since(min(start.cycle, until)).changes
        if len(inherited) > MOST_JOINTS - _MOST_NEW or len(changes) >= MOST_JOINT_CHANGES:
            return False
        if until > self.opened:
            self.joints, self.opened, self._inherited = joints, until, inherited
        return True

    def _merged(self, cycle: int, known: Known, alive: Collection[int]) -> tuple[Joints, int] | None:
        """Return what is in force if what a trainer knows follows on this; None if the two contradict."""
        joints, until = self.joints, self.opened
        while until < known.opened and (places := set(known.joints.of(until + 1))).issuperset(alive):
            joints = joints.then(until + 1, places)
            later = (since for since, _ in known.joints.changes if since > until + 1)
            until = min(known.opened, next(later, known.opened + 1) - 1)
        if until < cycle or joints.deciding(cycle) != known.joints.deciding(cycle):
            return None
        return joints, until

    def _alive(self, began: Collection[int]) -> frozenset[int]:
        return self._inherited.union(began) - self._always - {0}
