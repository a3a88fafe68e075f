"""Trainers of any parts of the data: each gets blocks with all its samples, none has what nobody wanted."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.examples import examples

from penstock.contracts import Cursor, Ids, SourceBlock
from penstock.feed.feeder.blocks import FeedMember, PublishedBlock
from penstock.feed.feeder.feed_state import FeedState
from penstock.feed.feeder.joints import head
from penstock.feed.feeder.session import selects_otherwise
from penstock.feed.named_rows import encode_ids, encode_kept
from penstock.memory.room import Room
from penstock.memory.slots import place
from penstock.sources.order import Planned, planned
from penstock.subsets.selection import Selection
from penstock.tree.layout import Constant

Part = frozenset[int]


@dataclass
class Trainer:
    """What one trainer has got: the ids of its part, epoch by epoch, since it started."""

    part: Part
    next: Cursor | None = None
    start: Cursor | None = None
    seen: list[int] = field(default_factory=list)


class SelectedBlocksMachine(RuleBasedStateMachine):
    """A source that plans some blocks ahead, and trainers that come, go, and go back at any time."""

    @initialize(
        samples=st.integers(1, 30),
        block_rows=st.integers(1, 7),
        segments=st.integers(1, 4),
        ahead=st.integers(1, 6),
    )
    def make(self, samples: int, block_rows: int, segments: int, ahead: int) -> None:
        self.samples, self.block_rows, self.ahead = samples, block_rows, ahead
        blocks = -(-samples // block_rows)
        segments = min(segments, blocks)
        self.segment_starts = tuple(i * blocks // segments * block_rows for i in range(segments))
        self.state = FeedState(Room(1 << 20), samples, self.segment_starts, None)
        self.trainers: dict[int, Trainer] = {}
        self.cycle = 0
        self.plans: deque[Planned] = deque()
        self.source = iter(())
        self.wanted_last: Part | None = None
        self.came = 0
        self.in_vain = False

    def everything(self) -> Part:
        return frozenset(range(self.samples))

    def order(self, cycle: int) -> Ids:
        """Another order in each cycle, whose segments keep their samples."""
        ids = np.arange(self.samples)
        for start, stop in zip(self.segment_starts, (*self.segment_starts[1:], self.samples), strict=True):
            ids[start:stop] = np.roll(ids[start:stop], cycle)
        return ids

    # What trainers do.

    @precondition(lambda self: len(self.trainers) < 5)
    @rule(data=st.data(), world=st.sampled_from([1, 1, 2]))
    def come(self, data: st.DataObject, world: int) -> None:
        part = data.draw(st.one_of(st.none(), st.frozensets(st.integers(0, self.samples - 1), min_size=1)))
        for rank in range(world):
            member = FeedMember(self.came, rank, world, f"group {self.came - rank}")
            if part is not None:
                member.selected = Selection(sorted(part)).bitmap(self.samples)
                member.part = len(part) / self.samples
            self.state.join(member)
            self.trainers[self.came] = Trainer(self.everything() if part is None else part)
            self.came += 1

    @precondition(lambda self: any(t.next is None for t in self.trainers.values()))
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        waiting = [id for id, t in self.trainers.items() if t.next is None]
        missing = self.missing()
        for member in self.state.start(data.draw(st.sampled_from(waiting)), None, 0, Cursor(0, 0)):
            assert member.next is not None and member.next.sample in self.segment_starts
            soonest = head(self.state).next_segment(self.segment_starts)
            if not self.plans:
                assert member.next <= soonest
            assert not missing(self.trainers[member.id].part, member.next), "it would be loaded once more"
            self.begin(member, member.next)

    def missing(self):
        """Return whether blocks that are planned now, from a position on, lack samples of a part."""
        plans = [(Cursor(self.cycle, plan.sample), set(plan.ids.tolist())) for plan in self.plans]

        used = max((i + 1 for i, (_, loaded) in enumerate(plans) if loaded), default=0)

        def lack(part: Part, begin: Cursor) -> bool:
            return any(
                at >= begin and part & set(self.ids_at(at).tolist()) - loaded for at, loaded in plans[:used]
            )

        return lack

    def ids_at(self, at: Cursor) -> Ids:
        return self.order(at.cycle)[at.sample : at.sample + self.block_rows]

    @precondition(lambda self: any(m.world == 1 for m in self.state.members.values()))
    @rule(data=st.data(), cycle=st.integers(0, 3))
    def resume(self, data: st.DataObject, cycle: int) -> None:
        id = data.draw(st.sampled_from([m.id for m in self.state.members.values() if m.world == 1]))
        self.state.release(id, list(self.state.members[id].held))
        at = Cursor(cycle, data.draw(st.integers(0, self.samples - 1)))
        if self.plans and data.draw(st.booleans()):
            at = Cursor(self.cycle, data.draw(st.sampled_from(self.plans)).sample)
        member, *_ = self.state.start(id, at, 0, at)
        self.begin(member, at)

    def begin(self, member: FeedMember, at: Cursor) -> None:
        trainer = self.trainers[member.id]
        trainer.start, trainer.next, trainer.seen = at, at, []
        for block in self.state.backlog(member):
            self.receive(member.id, block)

    @precondition(lambda self: self.trainers)
    @rule(data=st.data())
    def leave_or_die(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.trainers)))
        self.state.leave(id)
        del self.trainers[id]

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        for id in data.draw(st.sets(st.sampled_from(sorted(self.trainers)))) if self.trainers else ():
            self.state.release(id, list(self.state.members[id].held))

    # What the feeder does.

    @rule(times=st.integers(1, 12))
    def feed(self, times: int) -> None:
        for _ in range(times):
            self.step()

    def step(self) -> None:
        needed = self.state.needed()
        if needed is None:
            return
        self.plan()
        following = Cursor(self.cycle, self.plans[0].sample) if self.plans else None
        if following is None or not following <= needed < following.after(self.plans[0].rows, self.samples):
            self.open(needed)
        plan = self.plans.popleft()
        assert plan.sample <= needed.sample < plan.sample + plan.rows
        self.publish(plan.block(None))
        self.plan()

    def open(self, at: Cursor) -> None:
        self.state.open(at.cycle)
        self.cycle = at.cycle
        self.plans.clear()
        order, rows = self.order(at.cycle), self.block_rows
        starts = range(at.sample // rows * rows, self.samples, rows)
        self.source = planned(((start, order[start : start + rows]) for start in starts), self.wanted)
        self.plan()

    def plan(self) -> None:
        while len(self.plans) < self.ahead and (plan := next(self.source, None)) is not None:
            self.plans.append(plan)

    def wanted(self, sample: int, ids: Ids) -> np.ndarray | None:
        """Ask the state, and check that it wants what those want together who will read the block."""
        at = Cursor(self.cycle, sample)
        end = at.after(len(ids), self.samples)
        parts = [t.part for t in self.trainers.values() if t.next is not None and t.next < end]
        wanted = self.state.plan(at, ids)
        mask = np.ones(len(ids), np.bool_) if wanted is None else wanted
        if parts:
            self.wanted_last = frozenset().union(*parts)
        assert self.wanted_last is not None
        assert set(ids[mask].tolist()) == self.wanted_last & set(ids.tolist())
        return wanted

    def publish(self, block: SourceBlock) -> None:
        at = Cursor(self.cycle, block.sample)
        offset = self.state.room.reserve(64)
        assert offset is not None
        ids, kept = encode_ids(block.ids), encode_kept(block.kept, block.rows)
        published = PublishedBlock(at, block.rows, offset, place(Constant(None), ()), ids, kept)
        readers = self.state.publish(published)
        # A block planned before its only reader went there lacks that one's samples: it is loaded again.
        assert readers or not self.in_vain
        self.in_vain = not readers
        for member in readers:
            self.receive(member.id, published)

    def receive(self, id: int, block) -> None:
        trainer = self.trainers[id]
        assert trainer.next is not None and trainer.start is not None
        end = block.at.after(block.rows, self.samples)
        assert block.at <= trainer.next < end, "the very next row"
        mine = [i for i in self.ids_at(block.at).tolist() if i in trainer.part]
        stored = set(np.frombuffer(block.ids, "<u4").tolist())
        assert trainer.part & set(self.ids_at(block.at).tolist()) <= stored, "all its samples"
        assert block.rows_for(self.state.members[id].selected) == len(mine)
        first = trainer.next.sample - block.at.sample if trainer.next > block.at else 0
        trainer.seen += [i for i in self.ids_at(block.at)[first:].tolist() if i in trainer.part]
        trainer.next = end
        if end >= Cursor(trainer.start.cycle + 1, trainer.start.sample) and not trainer.start.sample:
            assert sorted(trainer.seen) == sorted(trainer.part), "an epoch is its part, each sample once"
            trainer.start, trainer.seen = end, []

    @invariant()
    def the_feeder_knows_where_each_reads(self) -> None:
        for id, trainer in getattr(self, "trainers", {}).items():
            assert self.state.members[id].next == trainer.next


SelectedBlocksMachine.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=40)
test_parts_by_any_sequence = SelectedBlocksMachine.TestCase


def test_ranks_that_select_otherwise_than_one_that_waits_are_told_apart():
    state = FeedState(Room(1 << 20), 10, (0,), None)
    for id, (rank, part) in enumerate([(0, [1, 2]), (1, [3]), (1, [1, 2]), (0, [3])]):
        state.join(FeedMember(id, rank, 2, "a", selected=Selection(part).bitmap(10)))
    assert not any(selects_otherwise(state, id) for id in range(4)), "none waits: a rank may have two loaders"
    state.start(0, None, 0, Cursor(0, 0))
    assert [selects_otherwise(state, id) for id in range(4)] == [False, True, False, False]
    assert [member.id for member in state.start(2, None, 0, Cursor(0, 0))] == [0, 2]
    assert not any(selects_otherwise(state, id) for id in range(4))
