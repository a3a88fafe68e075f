"""The end of a ring that is not used goes back to the kernel, and never a byte that is in use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.examples import examples

from penstock.memory.host_ring import LOOK_S, UnusedPages, WritableHostRing
from penstock.memory.room import Room

MIB = 1 << 20


class UsedMachine(RuleBasedStateMachine):
    """Reservations of any size come and go; what was written at both ends of each stays."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = WritableHostRing.create(160 * MIB)
        self.room = Room(self.ring.capacity_bytes)
        self.unused = UnusedPages(self.room, self.ring)
        self.now = 0.0
        self.held: dict[int, tuple[int, int]] = {}
        self.marks = 0
        self.written: set[int] = set()

    def teardown(self) -> None:
        self.ring.close()

    @rule(nbytes=st.integers(1, 50 * MIB))
    def reserve(self, nbytes: int) -> None:
        offset = self.room.reserve(nbytes)
        if offset is not None:
            self.marks = self.marks % 255 + 1
            self.held[offset] = nbytes, self.marks
            for place in (offset, offset + nbytes - 1):
                self.ring.writable(place, 1)[:] = self.marks
                self.written.add(place)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.held)))
        del self.held[offset]
        self.room.release(offset)

    @rule(seconds=st.sampled_from([0.0, LOOK_S / 2, LOOK_S, 5 * LOOK_S]))
    def look(self, seconds: float) -> None:
        self.now += seconds
        self.unused.give_back(self.now)

    @rule()
    def rest(self) -> None:
        """Look until there is nothing to give back: then the pages beyond what is used are gone."""
        looks = 0
        while (wait_s := self.unused.timeout_s(self.now)) is not None:
            self.now += wait_s
            self.unused.give_back(self.now)
            looks += 1
            assert looks < 10
        top = max((offset + nbytes for offset, (nbytes, _) in self.held.items()), default=0)
        for place in self.written:
            assert place < top + 18 * MIB or self.ring.readable(place, 1)[0] == 0

    @invariant()
    def what_is_in_use_stays(self) -> None:
        for offset, (nbytes, mark) in self.held.items():
            assert self.ring.readable(offset, 1)[0] == mark
            assert self.ring.readable(offset + nbytes - 1, 1)[0] == mark


TestUsed = UsedMachine.TestCase
TestUsed.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


@pytest.fixture
def ring() -> Iterator[WritableHostRing]:
    ring = WritableHostRing.create(64 * MIB)
    yield ring
    ring.close()


def filled_and_left(ring: WritableHostRing, unused: UnusedPages, room: Room) -> None:
    """A quarter stays reserved; the rest was written once and is looked at three times."""
    room.reserve(16 * MIB)
    offset = room.reserve(48 * MIB)
    assert offset == 16 * MIB
    ring.writable(0, ring.capacity_bytes)[:] = 7
    room.release(offset)
    for look in range(3):
        unused.give_back(look * LOOK_S)


def test_what_was_used_in_the_last_interval_is_kept_for_one_more(ring):
    room = Room(ring.capacity_bytes)
    unused = UnusedPages(room, ring)
    assert unused.timeout_s(0.0) is None
    offset = room.reserve(48 * MIB)
    ring.writable(0, 48 * MIB)[:] = 7
    room.release(offset or 0)
    assert unused.timeout_s(0.0) == 0
    for look, resident_bytes in enumerate((48 * MIB, 48 * MIB, 0)):
        assert unused.timeout_s(look * LOOK_S) == 0
        unused.give_back(look * LOOK_S)
        assert ring.resident_bytes == resident_bytes
    assert unused.timeout_s(3 * LOOK_S) is None


def test_the_end_that_nobody_uses_is_given_back(ring):
    room = Room(ring.capacity_bytes)
    filled_and_left(ring, UnusedPages(room, ring), room)
    assert ring.resident_bytes == 16 * MIB
    assert (ring.readable(0, 16 * MIB) == 7).all()
    assert room.reserve(48 * MIB) == 16 * MIB
    ring.writable(16 * MIB, 48 * MIB)[:] = 9
    assert (ring.readable(16 * MIB, 48 * MIB) == 9).all()


def test_a_ring_that_may_be_registered_keeps_all_its_pages(ring):
    room = Room(ring.capacity_bytes)
    unused = UnusedPages(room, ring)
    unused.retain_all()
    filled_and_left(ring, unused, room)
    assert ring.resident_bytes == 64 * MIB
    assert unused.timeout_s(0.0) is None
