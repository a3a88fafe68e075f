"""No sequence of join, start, publish, release, resume and leave loses or repeats a sample, or loses room."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.examples import examples

from penstock.contracts import Cursor
from penstock.feed.feeder.blocks import FeedMember, PublishedBlock
from penstock.feed.feeder.feed_state import FeedState
from penstock.feed.feeder.joints import head
from penstock.memory.room import ALIGNMENT, Room, aligned
from penstock.memory.slots import Placement
from penstock.tree.layout import Constant


def of_bytes(nbytes: int) -> Placement:
    """How a block without leaves lies that takes so many bytes."""
    return Placement(Constant(None), (), (), nbytes)


@dataclass
class Trainer:
    """What one trainer knows: where it reads on, and which blocks it was sent and has not released."""

    id: int
    start: Cursor | None = None
    next: Cursor | None = None
    epoch: int = 0
    asked: bool = False
    sent: int = 0
    read: int = 0
    held: dict[int, PublishedBlock] = field(default_factory=dict)


class FeedStateMachine(RuleBasedStateMachine):
    """Trainers of every kind against a feeder that publishes whatever is needed first."""

    views_live_on = False

    @initialize(
        cycle_length=st.integers(1, 40),
        block_rows=st.integers(1, 9),
        segments=st.integers(1, 5),
        lines=st.integers(3, 12),
        known=st.booleans(),
        epochs=st.one_of(st.none(), st.integers(1, 3)),
        options=st.fixed_dictionaries(
            {
                "prefetch": st.one_of(st.none(), st.integers(1, 4)),
                "expect": st.sampled_from([1, 1, 2, 3]),
                "anywhere": st.booleans(),
            }
        ),
    )
    def make(self, cycle_length, block_rows, segments, lines, known, epochs, options) -> None:
        self.length = cycle_length
        self.block_starts = list(range(0, cycle_length, block_rows))
        segments = min(segments, len(self.block_starts)) if known else 1
        self.segment_starts = tuple(
            self.block_starts[i * len(self.block_starts) // segments] for i in range(segments)
        )
        self.samples = cycle_length if known else None
        self.epochs = epochs
        self.room = Room(lines * ALIGNMENT)
        self.prefetch, self.expect, self.anywhere = options["prefetch"], options["expect"], options["anywhere"]
        self.gathers = self.expect > 1
        self.state = FeedState(self.room, self.samples, self.segment_starts, epochs, **options)
        self.trainers: dict[int, Trainer] = {}
        self.blocks: dict[int, PublishedBlock] = {}
        self.ids = 0

    # What trainers do.

    @precondition(lambda self: len(self.trainers) < 5)
    @rule()
    def join(self) -> None:
        self._join(FeedMember(self.ids))

    @precondition(lambda self: len(self.trainers) < 5)
    @rule(group=st.sampled_from("ab"))
    def join_as_a_rank(self, group: str) -> None:
        free = [rank for rank in (0, 1) if not self.state.rank_taken(FeedMember(self.ids, rank, 2, group))]
        if free:
            self._join(FeedMember(self.ids, free[0], 2, group))

    def _join(self, member: FeedMember) -> None:
        self.state.join(member)
        self.trainers[member.id] = Trainer(member.id)
        self.ids += 1

    @precondition(lambda self: any(not t.asked for t in self.trainers.values()))
    @rule(data=st.data())
    def start_at_the_next_segment(self, data: st.DataObject) -> None:
        trainer = data.draw(st.sampled_from([t for t in self.trainers.values() if not t.asked]))
        trainer.asked = True
        soonest = head(self.state)
        if not self.anywhere:
            soonest = soonest.next_segment(self.segment_starts)
        fellows = self._fellows(trainer)
        started = [f for f in fellows if f.start is not None and f.epoch == 0]
        waiting = [f for f in fellows if self.state.members[f.id].pending]
        begun = self.state.start(trainer.id, None, 0, Cursor(0, 0), serial=7)
        assert len({member.next for member in begun}) <= 1
        world = self.state.members[trainer.id].world
        if started:
            assert [member.id for member in begun] == [trainer.id]
            assert begun[0].next in [fellow.start for fellow in started], "where the other rank's epoch began"
        else:
            assert len(begun) == (world if len(waiting) == world - 1 else 0)
        for member in begun:
            assert member.next is not None
            assert self.anywhere or member.next.sample in self.segment_starts
            assert member.serial == 7
            assert started or member.next <= soonest
            self._begin(member, member.next, 0, member.next)

    def _fellows(self, trainer: Trainer) -> list[Trainer]:
        """The other ranks of a trainer's group."""
        mine = self.state.members[trainer.id]
        others = [(id, m) for id, m in self.state.members.items() if m is not mine and m.world > 1]
        return [self.trainers[id] for id, m in others if (m.group, m.world) == (mine.group, mine.world)]

    @precondition(lambda self: self.trainers)
    @rule(data=st.data(), cycle=st.integers(0, 3), epoch=st.integers(0, 2))
    def resume_anywhere(self, data: st.DataObject, cycle: int, epoch: int) -> None:
        """Whether it has read before or not, and waits for other ranks or not."""
        trainer = data.draw(st.sampled_from(list(self.trainers.values())))
        if not self.views_live_on:
            self._release_all(trainer)
        delivered = data.draw(st.integers(0, self.length - 1))
        start = Cursor(cycle, data.draw(st.sampled_from(self.segment_starts)))
        sample = start.sample + delivered
        if self.samples is None and sample >= self.length:
            return
        at = Cursor(cycle + sample // self.length, sample % self.length)
        if self.epochs is not None:
            epoch = min(epoch, self.epochs - 1)
        trainer.asked = True
        self.gathers = False
        waiting = [f.id for f in self._fellows(trainer) if self.state.members[f.id].pending and epoch == 0]
        member, *followers = self.state.start(trainer.id, at, epoch, start, serial=7)
        self._begin(member, at, epoch, start)
        assert [follower.id for follower in followers] == waiting, (
            "who waits for an epoch that has begun begins it"
        )
        for follower in followers:
            self._begin(follower, start, epoch, start)

    def _begin(self, member: FeedMember, at: Cursor, epoch: int, epoch_start: Cursor) -> None:
        trainer = self.trainers[member.id]
        trainer.start, trainer.next, trainer.epoch = epoch_start, at, epoch
        runs = {(m.group, 0 if m.world > 1 else m.id) for m in self.state.members.values() if m.next is not None}
        self.gathers = self.gathers and len(runs) < self.expect
        for item in self.state.backlog(member):
            if isinstance(item, Cursor):
                assert self.samples is None and item.sample == self.length
                assert trainer.next is not None and item.cycle == trainer.next.cycle and item <= trainer.next
                trainer.next = Cursor(item.cycle + 1, 0)
            else:
                self._receive(trainer, item)
        assert member.next == trainer.next

    @precondition(lambda self: any(t.held for t in self.trainers.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        trainer = data.draw(st.sampled_from([t for t in self.trainers.values() if t.held]))
        ordinals = data.draw(st.lists(st.sampled_from(sorted(trainer.held)), min_size=1))
        assert self.state.release(trainer.id, ordinals)
        for ordinal in set(ordinals):
            del trainer.held[ordinal]

    @precondition(lambda self: self.trainers)
    @rule(data=st.data(), ordinal=st.integers(0, 50))
    def release_what_was_never_sent(self, data: st.DataObject, ordinal: int) -> None:
        trainer = data.draw(st.sampled_from(list(self.trainers.values())))
        assert not self.state.release(trainer.id, [*trainer.held, trainer.sent + ordinal])

    @precondition(lambda self: any(t.sent > len(t.held) for t in self.trainers.values()))
    @rule(data=st.data())
    def release_again(self, data: st.DataObject) -> None:
        """A release that was told, and broken off before it was forgotten."""
        trainer = data.draw(st.sampled_from([t for t in self.trainers.values() if t.sent > len(t.held)]))
        ordinal = data.draw(st.sampled_from([n for n in range(trainer.sent) if n not in trainer.held]))
        assert self.state.release(trainer.id, [ordinal])

    @precondition(lambda self: self.trainers)
    @rule(data=st.data())
    def wait(self, data: st.DataObject) -> None:
        """A trainer has read all that it was sent, and may keep some of it."""
        self._wait(data.draw(st.sampled_from(list(self.trainers.values()))))

    def _wait(self, trainer: Trainer) -> None:
        assert self.state.has_read(trainer.id, trainer.sent)
        trainer.read = trainer.sent

    @precondition(lambda self: self.trainers)
    @rule(data=st.data(), more=st.integers(1, 50))
    def read_what_was_never_sent(self, data: st.DataObject, more: int) -> None:
        trainer = data.draw(st.sampled_from(list(self.trainers.values())))
        assert not self.state.has_read(trainer.id, trainer.sent + more)

    @precondition(lambda self: not self.gathers and any(t.epoch + 1 == self.epochs for t in self._readers()))
    @rule(data=st.data())
    def end_the_last_epoch(self, data: st.DataObject) -> None:
        """A trainer has all that it selects of its last epoch, before that has been sent to its end."""
        trainer = data.draw(st.sampled_from([t for t in self._readers() if t.epoch + 1 == self.epochs]))
        assert trainer.start is not None and self.epochs is not None
        end = Cursor(trainer.start.cycle + 1, 0 if self.samples is None else trainer.start.sample)
        self.state.begin_epoch(trainer.id, self.epochs, end)
        trainer.next = end
        others = [t for t in self.trainers.values() if t is not trainer]
        assert others or self.state.finished

    @precondition(lambda self: self.trainers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.trainers)))
        self.gathers = self.gathers and not self.trainers[id].asked
        self.state.leave(id)
        del self.trainers[id]

    def _release_all(self, trainer: Trainer) -> None:
        for ordinal in list(trainer.held):
            assert self.state.release(trainer.id, [ordinal])
        trainer.held.clear()

    # What the feeder does.

    @rule()
    def feed(self) -> None:
        self._feed()

    @rule()
    def time_passes(self) -> None:
        self.state.beginning.expire(10**12)
        assert not any(block.stays for block in self.state.blocks.values())

    @rule(n=st.integers(2, 12))
    def feed_much(self, n: int) -> None:
        for _ in range(n):
            self._feed()

    def _feed(self) -> None:
        """Publish the block that holds what is needed first, if there is room for it."""
        needed = self.state.needed()
        assert self.state.gathers == self.gathers
        if self.gathers:
            assert needed is None, "those that are expected come first"
            return
        assert needed == min((t.next for t in self._readers()), default=None)
        if needed is None:
            return
        if needed.sample >= self.length:
            waiting = self.state.end_cycle(needed.cycle, self.length)
            self.anywhere = False
            for member in waiting:
                trainer = self.trainers[member.id]
                assert trainer.next is not None
                assert trainer.next >= Cursor(needed.cycle, self.length)
                trainer.next = Cursor(needed.cycle + 1, 0)
            return
        start = max(s for s in self.block_starts if s <= needed.sample)
        stop = min((s for s in self.block_starts if s > start), default=self.length)
        nbytes = (stop - start) * 10
        unread = {t.id: sum(n >= t.read for n in t.held) for t in self._readers()}
        enough = self.state.has_enough(stop - start, nbytes)
        assert not (enough and 0 in unread.values()), "who has nothing to read is fed"
        if self.prefetch is not None:
            most = self.state.batches or 2  # more than a cycle is not kept ready, once that has ended
            worlds = {id: min(self.state.members[id].world, most) for id in unread}
            assert enough == all(unread[id] >= self.prefetch * worlds[id] for id in unread)
        if enough:
            return
        offset = self.state.reserve(nbytes)
        if offset is None:
            assert any(t.held for t in self.trainers.values()), "a window that nobody holds has room"
            assert self.state.largest_holder() is not None
            assert not any(block.stays for block in self.state.blocks.values()), "who needs the room gets it"
            return
        block = PublishedBlock(Cursor(needed.cycle, start), stop - start, offset, of_bytes(nbytes))
        readers = self.state.publish(block)
        assert readers, "it was needed"
        for member in readers:
            self._receive(self.trainers[member.id], block)

    def _receive(self, trainer: Trainer, block: PublishedBlock) -> None:
        """Each block holds the very next sample."""
        assert trainer.next is not None
        end = self._after(block)
        assert block.at <= trainer.next < end
        assert not self._had_everything(trainer)
        trainer.next = end
        trainer.held[trainer.sent] = block
        trainer.sent += 1
        self.blocks[block.number] = block

    def _after(self, block: PublishedBlock) -> Cursor:
        return self._to(block.at, block.at.sample + block.rows)

    def _next_to(self, block: PublishedBlock) -> Cursor:
        """Where the block after one begins, whether the source knows its length or not."""
        end = self._after(block)
        return Cursor(end.cycle + 1, 0) if end.sample == self.length else end

    def _to(self, at: Cursor, sample: int) -> Cursor:
        """The place of a sample of the cycle of ``at``, or of the next one's first."""
        return Cursor(at.cycle + 1, 0) if sample == self.samples else Cursor(at.cycle, sample)

    def _readers(self) -> list[Trainer]:
        return [t for t in self.trainers.values() if t.next is not None and not self._had_everything(t)]

    def _had_everything(self, trainer: Trainer) -> bool:
        if self.epochs is None or trainer.start is None or trainer.next is None:
            return False
        sample = 0 if self.samples is None else trainer.start.sample  # of unknown length, it ends with its cycle
        return trainer.next >= Cursor(trainer.start.cycle + self.epochs - trainer.epoch, sample)

    # What holds at any time.

    @invariant()
    def what_is_held_is_what_was_sent(self) -> None:
        wanted = {block.number for trainer in self.trainers.values() for block in trainer.held.values()}
        here = self.state.blocks
        staying = [block for block in here.values() if block.stays]
        assert set(here) == wanted | {block.number for block in staying}
        assert all(self._next_to(before) == after.at for before, after in pairwise(staying))
        assert all(
            self.samples is None and self._after(b).sample == self.length for b in here.values() if b.closes
        )
        assert sum(block.placement.nbytes for block in staying) <= self.room.capacity_bytes / 4
        assert self.room.used_bytes == sum(aligned(self.blocks[n].placement.nbytes) for n in here)
        for id, trainer in self.trainers.items():
            member = self.state.members[id]
            assert member.next == trainer.next
            assert {n: block.number for n, block in member.held.items()} == {
                n: block.number for n, block in trainer.held.items()
            }
            assert member.held_bytes == sum(
                b.placement.nbytes for b in {b.number: b for b in trainer.held.values()}.values()
            )
            mine = {block.number for block in trainer.held.values()}
            assert self.state.only_holders({id}) == (bool(here) and mine == set(here))
            assert member.unread == sum(n >= trainer.read for n in trainer.held)
            assert member.finished == self._had_everything(trainer)

    @invariant()
    def no_two_blocks_overlap(self) -> None:
        ranges = sorted((b.offset, b.offset + b.placement.nbytes) for b in self.state.blocks.values())
        assert all(stop <= start for (_, stop), (start, _) in pairwise(ranges))

    @invariant()
    def nobody_is_told_to_end_early(self) -> None:
        if self.state.finished:
            assert all(self._had_everything(t) for t in self.trainers.values())

    def teardown(self) -> None:
        """Whoever still reads is served to the end, as soon as blocks are released."""
        if not hasattr(self, "state"):
            return
        self.state.gathers = self.gathers = False  # whoever waits has waited long enough
        goals = {
            t.id: Cursor(t.next.cycle + 2, t.next.sample) for t in self.trainers.values() if t.next is not None
        }
        for _ in range(2000):
            behind = [t for t in self._readers() if t.next is not None and t.next < goals[t.id]]
            if not behind:
                break
            for trainer in self.trainers.values():
                self._release_all(trainer)
                self._wait(trainer)
            self._feed()
        else:
            raise AssertionError("somebody waits for ever")
        for trainer in list(self.trainers.values()):
            self.state.leave(trainer.id)
        assert self.room.used_bytes == 0


FeedStateMachine.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=40)
test_roster_by_any_sequence = FeedStateMachine.TestCase


class BorrowersMachine(FeedStateMachine):
    """As above, and trainers resume while views of what they were sent live on, to die later."""

    views_live_on = True


@pytest.mark.hypothesis
def test_feed_state_by_any_sequence_while_views_live_on():
    run_state_machine_as_test(
        BorrowersMachine,
        settings=settings(max_examples=examples(80), stateful_step_count=40, phases=[Phase.generate]),
    )


def blocks_of(state: FeedState, rows: int, *, until: int) -> None:
    """Publish a cycle of 100 samples up to a sample."""
    while state.position.sample < until:
        offset = state.room.reserve(rows)
        assert offset is not None
        state.publish(PublishedBlock(state.position, rows, offset, of_bytes(rows)))


def reading(state: FeedState, id: int) -> FeedMember:
    member = FeedMember(id)
    state.join(member)
    state.start(id, None, 0, Cursor(0, 0))
    return member


def test_a_late_trainer_begins_with_the_first_segment_that_lies_whole_in_the_ring():
    state = FeedState(Room(10_000), 100, (0, 50), None)
    reading(state, 0)
    blocks_of(state, 10, until=80)
    late = reading(state, 1)
    assert late.next == Cursor(0, 0)
    assert [block.at.sample for block in state.backlog(late)] == list(range(0, 80, 10))
    state.release(0, [0])
    state.release(1, [0])
    state.beginning.let_go()
    later = reading(state, 2)
    assert later.next == Cursor(0, 50)
    assert [block.at.sample for block in state.backlog(later)] == [50, 60, 70]


def test_the_greediest_holds_the_most_bytes_and_of_equals_is_furthest_behind():
    state = FeedState(Room(10_000), 100, (0,), None)
    assert state.largest_holder() is None
    first, second = reading(state, 0), reading(state, 1)
    blocks_of(state, 10, until=40)
    state.release(1, [1])
    assert state.largest_holder() is first
    state.release(0, [0])
    assert state.largest_holder() is second
    assert second.behind == Cursor(0, 0)
    assert first.behind == Cursor(0, 10)


def test_ranks_of_one_group_begin_together_and_those_of_another_do_not_count():
    state = FeedState(Room(10_000), 100, (0,), None)
    for id, (rank, world, group) in enumerate([(0, 2, "a"), (0, 2, "b"), (0, 3, "a"), (1, 2, "a")]):
        state.join(FeedMember(id, rank, world, group))
    assert state.rank_taken(FeedMember(9, 0, 2, "a"))
    assert not state.rank_taken(FeedMember(9, 1, 2, "b"))
    for id in (0, 1, 2):
        assert state.start(id, None, 0, Cursor(0, 0)) == []
        assert state.members[id].state == "waiting"
    assert [member.id for member in state.start(3, None, 0, Cursor(0, 0))] == [0, 3]
    assert [state.members[id].state for id in range(4)] == ["reading", "waiting", "waiting", "reading"]
    assert not state.rank_taken(FeedMember(9, 0, 2, "a")), "another run may use the same ranks"


def test_a_feed_with_epochs_is_finished_when_everybody_who_read_has_had_them():
    state = FeedState(Room(10_000), 100, (0,), 1)
    assert not state.finished
    member = reading(state, 0)
    blocks_of(state, 50, until=50)
    assert not state.finished
    state.publish(PublishedBlock(state.position, 50, state.room.reserve(50) or 0, of_bytes(50)))
    assert member.state == "finished"
    assert state.finished
    state.join(FeedMember(1))
    assert not state.finished
    state.leave(1)
    assert state.finished
