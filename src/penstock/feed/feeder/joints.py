"""Where epochs begin in a feed, and the joints that are in force in each of its cycles (decision 24).

Pure: a model of feeders and trainers in random histories drives it (``tests/feed/test_joints.py``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.contracts import MOST_CHANGES, MOST_JOINTS, NO_JOINTS, Cursor, Ids, Joints, Known, last_read
from penstock.feed.feeder.blocks import FeedMember
from penstock.feed.settings import MOST_BLOCKS
from penstock.memory.room import aligned
from penstock.subsets.selection import Bitmap, Mask, union

if TYPE_CHECKING:
    from penstock.feed.feeder.feed_state import FeedState


class _Planned(NamedTuple):
    """A block that the source has planned: what it loads of it (None for all), and whether that is any."""

    at: Cursor
    end: Cursor
    wanted: Bitmap | None
    loads: bool


def covers(wanted: Bitmap | None, selected: Bitmap | None) -> bool:
    """Whether the samples wanted of a block include all that a trainer takes; None is all."""
    return wanted is None or (selected is not None and wanted.covers(selected))


class PlannedBlocks:
    """The blocks that a source has planned and not given yet, in order, and what it loads of each."""

    def __init__(self) -> None:
        self._planned: deque[_Planned] = deque()
        self._union: Bitmap | None = None

    def forget(self) -> None:
        """Forget the blocks planned: the source is opened anew."""
        self._planned.clear()

    def plan(self, at: Cursor, end: Cursor, ids: Ids, selections: Sequence[Bitmap | None]) -> Mask | None:
        """Note a block that is planned now; return which of its samples to load, None for all.

        ``selections`` are what its readers take, as far as they are known; if nobody reads, the last ones count.
        """
        known = [each for each in selections if each is not None]
        if len(known) < len(selections):
            self._union = None
        elif known:
            digests = frozenset[str]().union(*(each.digests for each in known))
            if self._union is None or self._union.digests != digests:
                self._union = union(known)
        mask = None if self._union is None else self._union.holds(ids)
        self._planned.append(_Planned(at, end, self._union, mask is None or bool(mask.any())))
        return mask

    def given(self, at: Cursor) -> Bitmap | None:
        """Return what was loaded of a block that the source gives now."""
        while self._planned and self._planned[0].at <= at:
            block = self._planned.popleft()
            if block.at == at:
                return block.wanted
        return None

    def covered_from(self, selected: Bitmap | None) -> Cursor | None:
        """Return where the last planned block that may lack a trainer's samples ends; None if none does.

        Blocks at the end that load nothing cost nothing to plan again, and do not count.
        """
        last = next((i for i, each in enumerate(reversed(self._planned)) if each.loads), 0)
        loading = islice(reversed(self._planned), last, None)
        return next((each.end for each in loading if not covers(each.wanted, selected)), None)


_MOST_NEW = 15
"""Newcomers make no more joints than these: more of them cost accuracy, as fewer rows are shuffled together."""
_MOST_CHANGES_NEW = MOST_CHANGES // 2
"""And none where this many changes must be known: joints that go are changes too."""
APART_BATCHES = 20
"""Batches of the largest trainer between two joints: 20 cost no accuracy, 5 cost half a point (decision 14)."""


class FeedJoints:
    """The joints of a feed, cycle by cycle. What is in force in a cycle is fixed when that is opened.

    Methods are told as ``began`` where in their cycles the epochs of live trainers began.
    """

    def __init__(
        self,
        samples: int,
        always: Collection[int],  # joints in force in every cycle: where its segments begin
        block_rows: int = 1,
        *,
        shuffled: bool = True,
        starts: Callable[[int, Joints], Sequence[int]] | None = None,
    ) -> None:
        self.joints = NO_JOINTS  # what is in force, up to ``opened``
        self.opened = 0  # the last cycle that was opened
        self._samples = samples  # samples of a cycle
        self._always = frozenset(always)
        self._block_rows = block_rows  # rows of a block, at whose beginnings epochs begin
        self._shuffled = shuffled
        """False of data in one order, whose epochs may begin at any block without a joint."""
        self._starts = starts
        """Returns the places of a cycle where epochs may begin; None for the beginnings of its blocks."""
        self._begun = False  # nothing was opened and nobody admitted: what comes first is taken over
        self._inherited: frozenset[int] = frozenset()  # of trainers who read from another feeder, and may yet come

    def open(self, cycle: int, began: Collection[int]) -> bool:
        """Fix what is in force in a cycle, and in those before; return whether that is news to trainers."""
        self._begun = True
        if cycle <= self.opened or not self._shuffled:
            return False
        alive = self._alive(began)
        if self._starts is not None:  # nothing else can be kept together
            alive &= {*self._starts(self.opened, self.joints)}
        before, self.joints = self.joints, self.joints.then(self.opened + 1, alive)
        self.opened = cycle
        return self.joints is not before

    def may_begin(self, at: Cursor) -> bool:
        """Whether the epoch of somebody who was there before may begin at a place."""
        return self._may_begin(at, self.joints, self.opened)

    def since(self, cycle: int, began: Collection[int]) -> Known:
        """Return what trainers whose epochs began in this cycle, or later, must know."""
        alive = self._alive(began) if self._shuffled else ()
        return Known(self.joints.since(min(cycle, self.opened)), self.opened, tuple(sorted(alive)))

    def is_joint(self, at: Cursor, began: Collection[int]) -> bool:
        """Whether an epoch may begin at a place where others have begun, or where a cycle or a segment begins."""
        if not self._shuffled:
            return True
        return at.sample in self._alive(began) | self._always | {0} and self.may_begin(at)

    def place(self, at: Cursor, began: Collection[int], apart: int, oldest: int = 0) -> Cursor:
        """Return the first place at or after one where a newcomer's epoch may begin.

        At least ``apart`` rows lie between two joints, and between one and a cycle's ends; ``oldest`` is the first
        cycle in which an epoch of a live trainer began.
        """
        start_from = self._start_from(at.cycle)
        sample = start_from(at.sample)
        if not sample or (not self._shuffled and sample < self._samples):
            return Cursor(at.cycle, sample)
        alive = self._alive(began)
        joints = sorted(alive | self._always)
        places = [joint for joint in joints if joint >= sample and self.may_begin(Cursor(at.cycle, joint))]
        few = len(alive) < _MOST_NEW and len(self.since(oldest, began).joints.changes) < _MOST_CHANGES_NEW
        if few and at.cycle >= self.opened:
            for edge in (0, *joints, self._samples):
                if abs(sample - edge) < apart:
                    sample = start_from(edge + apart)
            places.append(sample)
        first = min(places, default=self._samples)
        return Cursor(at.cycle, first) if first < self._samples else Cursor(at.cycle + 1, 0)

    def admit(self, at: Cursor, start: Cursor, known: Known, began: Collection[int]) -> bool:
        """Let a trainer go on with an epoch that began under another feeder, if this feed's order allows it.

        It stands at ``at``; its epoch began at ``start``, and ``known`` is what it knows of the joints that were
        in force there. ``began`` is of the other trainers. Where this feed has not come yet, its joints become
        those that the trainer knows.
        """
        if not self._shuffled:
            return True
        if len(self._alive([*began, start.sample])) > MOST_JOINTS:
            return False
        if self._starts is not None and start.sample:  # nobody begins there before that cycle has been opened
            known = known._replace(opened=max(known.opened, start.cycle))
        cycle = last_read(at, start)
        joints, until = self._extended(known, self._alive(began))
        agree = cycle <= until and joints.deciding(cycle) == known.joints.deciding(cycle)
        if not agree and at != start:
            return False
        if not agree and self._begun:
            joints, until = self.joints, self.opened
        if not self._may_begin(start, joints, until):
            return False
        takes_over = until > self.opened or not self._begun
        inherited = self._inherited.union(known.alive) if takes_over else self._inherited
        changes = joints.since(min(start.cycle, until)).changes
        if len(inherited) > MOST_JOINTS - _MOST_NEW or len(changes) >= MOST_CHANGES:
            return False
        self.joints, self.opened, self._inherited, self._begun = joints, until, inherited, True
        return True

    def forget(self) -> None:
        """Keep no joint for trainers who have not come: from the next cycle on, those of who reads count."""
        self._inherited = frozenset()

    def gives(self, start: Cursor, known: Known) -> bool:
        """Whether the cycle where an epoch began has the same order here as for a trainer that is amid it."""
        return not self._shuffled or self.joints.deciding(start.cycle) == known.joints.deciding(start.cycle)

    def _extended(self, known: Known, alive: Collection[int]) -> tuple[Joints, int]:
        """Return what is in force if a trainer's knowledge continues ours, and up to which cycle."""
        joints, until = self.joints, self.opened
        while until < known.opened and (places := set(known.joints.of(until + 1))).issuperset(alive):
            if self._starts is not None and not places.issubset(self._starts(until, joints)):
                break
            joints = joints.then(until + 1, places)
            later = (since for since, _ in known.joints.changes if since > until + 1)
            until = min(known.opened, next(later, known.opened + 1) - 1)
        return joints, until

    def _alive(self, began: Collection[int]) -> frozenset[int]:
        return self._inherited.union(began) - self._always - {0}

    def _may_begin(self, at: Cursor, joints: Joints, until: int) -> bool:
        starts = self._starts if at.sample else None
        if starts is not None and (at.cycle > until or at.sample not in starts(at.cycle, joints)):
            return False
        return Known(joints, until).may_begin(at, self._always)

    def _start_from(self, cycle: int) -> Callable[[int], int]:
        """Return a function from a sample to the first place at or after it where an epoch may begin."""
        if self._starts is None:
            return lambda sample: -(-sample // self._block_rows) * self._block_rows
        places = [*(self._starts(cycle, self.joints) if cycle <= self.opened else [0]), self._samples]
        return lambda sample: places[min(bisect_left(places, sample), len(places) - 1)]


def joints_of(source: Any) -> FeedJoints | None:
    """Return the joints of a feed of this source; None if it can have none."""
    samples, rows = source.samples, source.batch_size
    if not (getattr(source, "joins", False) and samples and rows):
        return None
    shuffled, starts = getattr(source, "shuffled", True), getattr(source, "starts", None)
    return FeedJoints(samples, source.segment_starts[1:], rows, shuffled=shuffled, starts=starts)


def place_for(state: FeedState, group: list[FeedMember], not_before: Cursor) -> Cursor:
    """Return where an epoch of a group's members would begin now."""
    selected, ids = group[0].selected, {m.id for m in group}
    others = [m for m in state.members.values() if m.reads and m.id not in ids]
    position = head(state)
    if others and not_before.cycle > position.cycle + 1:  # of another history: it would wait for epochs
        not_before = Cursor(0, 0)
    here = list[Cursor]()  # where the blocks in the ring begin, newest first
    if (behind := state.planned.covered_from(selected)) is None:
        for block in reversed(state.held.up_to(position)):
            if block.at < not_before or not covers(block.union, selected):
                break
            here.append(block.at)
    soonest = max(behind or position, position, not_before)
    if state.joints is None:
        return _next_segment(state, here, soonest)
    if not others:  # a joint would be in nobody's way, and in nobody's favour
        return (here[-1] if here else soonest).next_segment(state.segment_starts)
    began = state.began(ids)
    if (joined := next((at for at in reversed(here) if state.joints.is_joint(at, began)), None)) is not None:
        return joined
    returns = not_before > Cursor(0, 0)  # what lies in the ring was loaded for it
    first = here[-1 if returns else 0] if here else soonest
    rows = state.block_rows
    apart = APART_BATCHES * max((m.batch_rows or rows) * m.world for m in [*group, *others])
    return state.joints.place(first, began, apart, min(m.epoch_start.cycle for m in others if m.epoch_start))


def is_far_behind(state: FeedState, at: Cursor) -> bool:
    """Whether others read who are behind a place by more than a cycle, and by more than fits the ring."""
    cycles = at.cycle - head(state).cycle - 1
    if state.joints is None or state.samples is None or state.needed() is None or cycles < 1:
        return False
    in_ring = MOST_BLOCKS
    for block in islice(state.blocks.values(), 1):
        in_ring = min(in_ring, state.room.capacity_bytes // max(1, aligned(block.placement.nbytes)))
    return cycles * state.samples > in_ring * state.block_rows


def head(state: FeedState) -> Cursor:
    """Where the feed is read next: before anything was published, where trainers that have come back stand."""
    readers = (m.next for m in state.members.values() if m.reads and m.next is not None)
    return state.position if state.furthest > Cursor(0, 0) else min(readers, default=state.position)


def newcomer_waits_samples(state: FeedState) -> int | None:
    """Return how many samples will be published before a trainer that came now would begin; None if unknown."""
    if state.samples is None:
        return None
    if state.needed() is None:
        return 0
    cycle, sample = place_for(state, [FeedMember(-1)], Cursor(0, 0))
    return max(0, (cycle - head(state).cycle) * state.samples + sample - head(state).sample)


def _next_segment(state: FeedState, here: list[Cursor], soonest: Cursor) -> Cursor:
    """Return where an epoch begins in a feed without joints."""
    places = (at for at in reversed(here) if state.anywhere or at.sample in state.segment_starts)
    if (place := next(places, None)) is not None:
        return place
    if state.anywhere:  # of unknown length, what has been read may be more than there is
        return head(state) if state.samples is None else soonest
    return soonest.next_segment(state.segment_starts)
