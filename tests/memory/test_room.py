"""No sequence of reserve and release makes reservations overlap or loses a byte."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.examples import examples

from penstock.memory.room import ALIGNMENT, Room, aligned
from penstock.memory.slots import place
from penstock.tree.layout import Constant


class RoomMachine(RuleBasedStateMachine):
    """Room against a model that marks every cache line."""

    @initialize(lines=st.integers(1, 40))
    def make(self, lines: int) -> None:
        self.capacity = lines * ALIGNMENT
        self.room = Room(self.capacity)
        self.free = [True] * lines
        self.held: dict[int, int] = {}

    def first_fit(self, lines: int) -> int | None:
        """The lowest run of free lines that is long enough."""
        for start in range(len(self.free) - lines + 1):
            if all(self.free[start : start + lines]):
                return start
        return None

    @rule(nbytes=st.integers(0, 12 * ALIGNMENT))
    def reserve(self, nbytes: int) -> None:
        lines = max(1, -(-nbytes // ALIGNMENT))
        fit = self.first_fit(lines)
        offset = self.room.reserve(nbytes)
        assert offset == (None if fit is None else fit * ALIGNMENT)
        if fit is not None:
            self.free[fit : fit + lines] = [False] * lines
            self.held[fit] = lines

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        start = data.draw(st.sampled_from(sorted(self.held)))
        lines = self.held.pop(start)
        self.room.release(start * ALIGNMENT)
        self.free[start : start + lines] = [True] * lines

    @precondition(lambda self: self.held)
    @rule(data=st.data(), nbytes=st.integers(0, 12 * ALIGNMENT))
    def shrink(self, data: st.DataObject, nbytes: int) -> None:
        start = data.draw(st.sampled_from(sorted(self.held)))
        self.room.shrink(start * ALIGNMENT, nbytes)
        lines = min(self.held[start], max(1, -(-nbytes // ALIGNMENT)))
        self.free[start + lines : start + self.held[start]] = [True] * (self.held[start] - lines)
        self.held[start] = lines

    @invariant()
    def bytes_add_up(self) -> None:
        assert self.room.used_bytes == self.free.count(False) * ALIGNMENT

    @rule()
    def release_all(self) -> None:
        for start in self.held:
            self.room.release(start * ALIGNMENT)
        assert self.room.reserve(self.capacity) == 0, "one gap of the whole capacity"
        self.room.release(0)
        self.held.clear()
        self.free = [True] * len(self.free)


RoomMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40)
test_room_by_any_sequence = RoomMachine.TestCase


@given(st.lists(st.integers(0, 500), max_size=20))
def test_the_leaves_of_a_block_lie_one_after_the_other_each_on_a_cache_line(sizes):
    _, offsets, _, nbytes = place(Constant(None), sizes)
    stops = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
    assert all(offset % ALIGNMENT == 0 for offset in offsets)
    assert all(stop <= start for stop, start in zip(stops, offsets[1:], strict=False))
    assert not stops or stops[-1] <= nbytes < stops[-1] + 2 * ALIGNMENT
    assert nbytes == sum(map(aligned, sizes))


def test_what_was_never_reserved_cannot_be_released():
    room = Room(640)
    room.reserve(64)
    room.release(0)
    with pytest.raises(KeyError):
        room.release(0)
