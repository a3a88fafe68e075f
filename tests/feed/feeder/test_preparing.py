"""A feed prepares for trainers that are to come from another: they find what they read, and nobody loses by it."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from penstock.contracts import Cursor, Known
from penstock.feed.feeder.blocks import TO_COME, FeedMember, PublishedBlock
from penstock.feed.feeder.feed_state import FeedState
from penstock.memory.room import ALIGNMENT, Room
from penstock.memory.slots import EMPTY

BEGAN = Cursor(1, 0)


class Feed:
    """A feed that prepares from a place, and what its members have been sent."""

    def __init__(self, length: int, rows: int, lines: int, at: Cursor) -> None:
        self.length, self.rows = length, rows
        self.state = FeedState(Room(lines * ALIGNMENT), length, (0,), None)
        self.state.prepare(at, BEGAN, Known())
        self.next: dict[int, Cursor] = {}  # of each member

    def come(self, at: Cursor) -> None:
        id = len(self.next)
        member = FeedMember(id)
        self.state.join(member)
        self.next[id] = at
        assert self.state.start(id, at, 0, BEGAN) == [member]
        for block in self.state.backlog(member):
            assert isinstance(block, PublishedBlock)
            self._receive(id, block)

    def publish(self) -> bool:
        """Publish what is needed first; False if all have enough, or nobody has room."""
        needed = self.state.needed()
        if needed is None:
            return False
        start = needed.sample // self.rows * self.rows
        rows = min(self.rows, self.length - start)
        if self.state.has_enough(rows, 10) or (offset := self.state.reserve(10)) is None:
            return False
        at = Cursor(needed.cycle, start)
        for member in self.state.publish(PublishedBlock(at, rows, offset, EMPTY._replace(nbytes=10))):
            if member.id != TO_COME:
                self._receive(member.id, self.state.blocks[max(self.state.blocks)])
        return True

    def release(self, id: int) -> None:
        sent = self.state.members[id].sent
        assert self.state.has_read(id, sent) and self.state.release(id, [*range(sent)])

    def _receive(self, id: int, block: PublishedBlock) -> None:
        end = block.at.after(block.rows, self.length)
        assert block.at <= self.next[id] < end, "each block holds the very next sample"
        self.next[id] = end


@settings(max_examples=examples(150))
@given(data=st.data(), length=st.integers(1, 40), rows=st.integers(1, 9), lines=st.integers(4, 30))
def test_who_comes_gets_each_sample_from_its_place_on(data: Any, length: int, rows: int, lines: int) -> None:
    at = Cursor(1, data.draw(st.integers(0, length - 1)))
    feed = Feed(length, rows, lines, at)
    for what in data.draw(st.lists(st.sampled_from(["publish", "come", "release", "end"]), max_size=40)):
        if what == "publish":
            feed.publish()
        elif what == "come" and len(feed.next) < 3:
            feed.come(at.after(data.draw(st.integers(0, length - 1 - at.sample)), length))
        elif what == "release" and feed.next:
            feed.release(data.draw(st.sampled_from(sorted(feed.next))))
        elif what == "end":
            feed.state.end_preparing()
    goals = {id: Cursor(place.cycle + 1, place.sample) for id, place in feed.next.items()}
    for _ in range(500):
        if all(feed.next[id] >= goal for id, goal in goals.items()):
            break
        for id in feed.next:
            feed.release(id)
        assert feed.publish(), "somebody waits for ever"
    feed.state.end_preparing()
    for id in feed.next:
        feed.state.leave(id)
    assert feed.state.room.used_bytes == 0


@given(rows=st.integers(1, 9), lines=st.integers(4, 30))
def test_it_fills_half_of_its_window_and_waits(rows: int, lines: int) -> None:
    feed = Feed(1000, rows, lines, Cursor(1, 0))
    while feed.publish():
        pass
    assert len(feed.state.blocks) == lines // 2
    assert feed.state.end_preparing() and not feed.state.blocks
