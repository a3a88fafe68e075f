"""Every trainer that goes on reads stretches of the log one behind the other, in random histories."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import pytest

from penstock.contracts import Bound, Cursor, CycleBegin, Known, Part
from penstock.sources.streams.bounds import StreamBounds, in_words


def bound(*offsets: int) -> Bound:
    return Bound(len(offsets), "", tuple(Part(i, offset) for i, offset in enumerate(offsets)))


Offsets = tuple[int, ...]


def offsets_of(of: Bound) -> Offsets:
    return tuple(part.offset for part in of.parts)


def between(begin: Offsets, end: Offsets) -> int:
    return sum(end) - sum(begin[: len(end)])


START = Cursor(0, 0)


@dataclass(eq=False)
class Trainer:
    """Reads a cycle after another; ``history`` are those that it has had rows of, as (begin, end)."""

    at: Cursor = START
    known: tuple[CycleBegin, ...] = ()
    history: dict[int, tuple[Offsets, Offsets]] = field(default_factory=dict[int, tuple[Offsets, Offsets]])

    def state(self) -> Trainer:
        """What its ``state_dict()`` would hold, from its own cycle on."""
        known = tuple(each for each in self.known if each.cycle >= self.at.cycle)
        return Trainer(self.at, known, dict(self.history))


class World:
    """A log that grows, a feed, its trainers, and states that were saved."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ends: Offsets = (0, 0)
        self.states: list[Trainer] = []
        self.trainers: list[Trainer] = []
        self.loaded = False  # whether a state of another moment was loaded since the feed began
        self.refused = 0
        self.new_feed()

    def new_feed(self) -> None:
        self.bounds, self.readers = StreamBounds(), list[Trainer]()
        self.cycle = 0  # that is given

    def grow(self) -> None:
        self.ends = tuple(end + self.random.randrange(9) for end in self.ends)
        if self.random.random() < 0.05:
            self.ends = (*self.ends, 0)

    def come(self, trainer: Trainer) -> None:
        """Let a trainer start at its place."""
        at, known = trainer.at, trainer.known
        before = msgspec.msgpack.encode(self.bounds.since(0))
        if why := self.bounds.admit(at, Known(cycles=known)):
            assert self.loaded, f"refused, though all come from one history: {why}"
            assert "\n" not in why and before == msgspec.msgpack.encode(self.bounds.since(0))
            self.refused += 1
            self.trainers.remove(trainer)
            return
        self.readers.append(trainer)
        self.cycle = min(self.cycle if len(self.readers) > 1 else at.cycle, at.cycle)
        self.tell(self.readers)

    def tell(self, readers: list[Trainer]) -> None:
        for each in readers:
            known = Known(cycles=self.bounds.since(each.at.cycle)).after(Known(cycles=each.known))
            each.known = known.since(each.at.cycle).cycles

    def newcomer(self) -> None:
        """Let somebody begin with a cycle that is in the ring, or with the next one."""
        there = [each.cycle for each in self.bounds.since(0) if each.cycle <= self.cycle + 1]
        trainer = Trainer(Cursor(self.random.choice(there or [self.cycle]), 0))
        self.trainers.append(trainer)
        self.readers.append(trainer)
        self.tell([trainer])

    def divided(self, begin: Offsets, end: Offsets, parts: int) -> Offsets:
        first = (*begin, *[0] * (len(end) - len(begin)))
        return tuple(a + (b - a) // parts for a, b in zip(first, end, strict=True))

    def open(self, *, killed: bool = False) -> bool:
        """Open the first cycle that anybody needs; a feeder that is killed amid it has told some only."""
        if not self.readers:
            return False
        cycle = self.cycle = min(each.at.cycle for each in self.readers)
        if (begin := self.bounds.begin(cycle)) is None:
            begin = bound(*[0] * len(self.ends))
            assert self.bounds.fix(cycle, begin)
            self.tell(self.readers)
        first = offsets_of(begin)
        if (ahead := self.bounds.ahead(cycle)) is not None:
            end, count = self.divided(first, offsets_of(ahead[0]), ahead[1]), ahead[2]
            assert count < 0 or (end, count) == (offsets_of(ahead[0]), between(first, end))
        else:
            start = (*first, *[0] * (len(self.ends) - len(first)))
            end = tuple(self.random.randint(a, b) for a, b in zip(start, self.ends, strict=True))
            if end == start and self.random.random() < 0.9:
                return False  # it waits for records
        assert self.bounds.fix(cycle + 1, bound(*end), between(first, end)) is not None
        self.tell([each for each in self.readers if not killed or self.random.random() < 0.5])
        return not killed

    def read(self) -> None:
        """Give some rows of the cycle that is open to some who need it."""
        if not self.open():
            return
        end, _, count = self.bounds.ahead(self.cycle) or pytest.fail("it is closed")
        stretch = offsets_of(self.bounds.begin(self.cycle) or bound()), offsets_of(end)
        for each in [each for each in self.readers if each.at.cycle == self.cycle]:
            if self.random.random() < 0.3:
                continue
            rows = self.random.randint(0, count - each.at.sample)
            if rows or each.at.sample:
                had = each.history.setdefault(self.cycle, stretch)
                assert had == stretch, "the rest of a cycle comes from another stretch than its beginning"
            each.at = Cursor(self.cycle, each.at.sample + rows)
            if each.at.sample == count and self.random.random() < 0.8:
                before = each.history.get(self.cycle - 1)
                assert before is None or before[1] == stretch[0][: len(before[1])] or self.loaded
                if before is not None:
                    assert before[1] == stretch[0], "records lie between two cycles, or in both"
                each.history.setdefault(self.cycle, stretch)
                each.at = Cursor(self.cycle + 1, 0)
        if self.random.random() < 0.3:
            self.bounds.forget_before(min(each.at.cycle for each in self.readers))
        self.tell(self.readers)

    def kill_feeder(self) -> None:
        """Kill the feeder, perhaps amid a cut; those who read start on the next one, in any order."""
        if self.random.random() < 0.5:
            self.open(killed=True)
        came = [*self.readers]
        self.random.shuffle(came)
        self.new_feed()
        self.loaded = False
        for each in came:
            self.come(each)
            if self.random.random() < 0.3:
                self.read()

    def kill_trainer(self) -> None:
        if self.readers:
            gone = self.random.choice(self.readers)
            self.readers.remove(gone)
            self.trainers.remove(gone)

    def save(self) -> None:
        self.states += [each.state() for each in self.trainers]

    def load(self) -> None:
        """Load a state of some moment, here or on a machine that knows nothing."""
        if not self.states:
            return
        if self.random.random() < 0.3:
            self.new_feed()
            self.trainers.clear()
        self.loaded = True
        trainer = self.random.choice(self.states).state()
        self.trainers.append(trainer)
        self.come(trainer)


@pytest.mark.parametrize("part", range(4))
def test_each_trainer_reads_consecutive_stretches_whatever_dies_and_comes_back(part: int):
    refused = gaps = 0
    for seed in range(part * 80, part * 80 + 80):
        world = World(seed)
        steps = [world.grow, world.read, world.read, world.read, world.newcomer, world.kill_feeder]
        steps += [world.kill_trainer, world.save, world.load] if seed % 2 else []
        for _ in range(120):
            world.random.choice(steps)()
            known = world.bounds.since(0)
            assert all(a.bound.is_before(b.bound) for a, b in pairwise(known))
            gaps += any(b.cycle > a.cycle + 1 for a, b in pairwise(known))
        refused += world.refused
    assert refused and gaps, "the histories had no contradiction, or no gap"


def begins(*places: tuple[int, int, int]) -> Known:
    return Known(cycles=tuple(CycleBegin(cycle, bound(offset), before) for cycle, offset, before in places))


def test_what_nobody_has_read_gives_way_to_what_somebody_has():
    bounds = StreamBounds()
    assert not bounds.admit(Cursor(5, 0), begins((5, 50, -1), (6, 60, 10), (7, 70, 10)))
    assert not bounds.admit(Cursor(6, 3), begins((6, 55, -1), (7, 65, 10)))
    assert bounds.begin(5) == bound(50)
    assert bounds.ahead(5) == (bound(55), 1, -1) and bounds.ahead(6) == (bound(65), 1, 10)


def test_a_length_holds_only_between_the_two_places_for_which_it_was_told():
    bounds = StreamBounds()
    assert not bounds.admit(Cursor(5, 0), begins((5, 50, -1), (6, 60, 10), (7, 70, 10)))
    assert not bounds.admit(Cursor(6, 0), begins((6, 55, -1)))
    assert bounds.begin(6) == bound(55) and bounds.ahead(6) == (bound(70), 1, -1)


def test_what_two_have_read_otherwise_is_refused_with_both_and_changes_nothing():
    bounds = StreamBounds()
    assert not bounds.admit(Cursor(5, 3), begins((5, 50, -1), (6, 60, 10)))
    before = bounds.since(0)
    why = bounds.admit(Cursor(6, 0), begins((6, 61, -1)))
    assert "partition 0 record 61" in why and "partition 0 record 60" in why
    assert bounds.since(0) == before
    assert "partition 0 record 49" in bounds.admit(Cursor(7, 0), begins((7, 49, -1))), "it would lie before"


def test_a_place_whose_cycle_nobody_knows_is_refused():
    bounds = StreamBounds()
    assert "where cycle 3 begins" in bounds.admit(Cursor(3, 1), begins((3, 30, -1)))
    assert "40 of the 10 records" in bounds.admit(Cursor(3, 40), begins((3, 30, -1), (4, 40, 10)))


def test_a_cut_that_came_too_late_is_not_made():
    bounds = StreamBounds()
    assert not bounds.admit(Cursor(0, 0), begins((0, 0, -1)))
    assert bounds.begin(0) == bound(0)
    assert not bounds.admit(Cursor(1, 0), begins((1, 8, -1)))
    assert bounds.fix(1, bound(10), 10) is None
    assert bounds.fix(1, bound(8), 8) and not bounds.fix(1, bound(8), 8)


def test_bounds_in_words():
    assert in_words(Bound()) == "the beginning"
    assert in_words(Bound(9, "a", (Part(1, 5, "b"),))) == "the end of a, b record 5"
    assert in_words(bound(1, 2, 3, 4, 5)).endswith("partition 2 record 3, 2 more")
