"""Reservations never overlap or lose a byte; a buffer is used again when nothing refers to it, never before."""

from __future__ import annotations

import gc
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.examples import examples

from penstock.memory.host_ring import Recycler, when_dead
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


RoomMachine.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=40)
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


LARGE = Recycler.SMALL_BYTES + 4096


def address(array: Any) -> int:
    return array.data_ptr() if isinstance(array, torch.Tensor) else array.__array_interface__["data"][0]


VIEWS: dict[str, Callable[[Any], Any]] = {
    "the array itself": lambda a: a,
    "a slice": lambda a: a[100:200],
    "another dtype": lambda a: a.view(np.float32)[10:],
    "a reshaped slice of a view": lambda a: a[: 64 * 64].reshape(64, 64)[3:5, ::2].T,
    "a memoryview": lambda a: memoryview(a)[5:],
    "a tensor": lambda a: torch.frombuffer(a, dtype=torch.uint8),
    "a tensor of a slice": lambda a: torch.from_numpy(a[64:]),
    "a view of a tensor": lambda a: torch.frombuffer(a, dtype=torch.bfloat16)[7:9].view(torch.int16),
    "an array of a tensor": lambda a: torch.frombuffer(a, dtype=torch.int64).numpy()[1:],
    "a storage": lambda a: torch.from_numpy(a).untyped_storage(),
}


def content(view: Any) -> list[Any]:
    return (view if isinstance(view, (torch.Tensor, torch.UntypedStorage)) else np.asarray(view)).tolist()


@pytest.mark.parametrize("how", VIEWS)
def test_a_view_keeps_the_memory_and_its_end_frees_it(how):
    recycler = Recycler()
    lent = recycler.take(LARGE)
    lent[:] = 77
    where = address(lent)
    view = VIEWS[how](lent)
    before = content(view)
    del lent
    gc.collect()
    others = [recycler.take(LARGE) for _ in range(4)]
    for other in others:
        assert abs(address(other) - where) >= LARGE
        other[:] = 1
    assert content(view) == before
    del others, other, view
    gc.collect()
    assert where in {address(again) for again in [recycler.take(LARGE) for _ in range(5)]}


def test_dead_memory_is_used_again_at_once():
    recycler = Recycler()
    first = recycler.take(LARGE)
    where = address(first)
    for _ in range(5):
        del first
        first = recycler.take(LARGE)
        assert address(first) == where


def test_a_much_smaller_array_does_not_take_a_large_buffer():
    recycler = Recycler()
    large = recycler.take(100 * LARGE)
    where = address(large)
    del large
    small = recycler.take(LARGE)
    assert not where <= address(small) < where + 100 * LARGE
    assert address(recycler.take(100 * LARGE)) == where


def test_small_arrays_are_private_too():
    recycler = Recycler()
    arrays = [recycler.take(nbytes) for nbytes in (0, 1, 64, Recycler.SMALL_BYTES)]
    for i, array in enumerate(arrays):
        array[:] = i
    assert [array.nbytes for array in arrays] == [0, 1, 64, Recycler.SMALL_BYTES]
    assert all((array == i).all() for i, array in enumerate(arrays))


@settings(max_examples=examples(50))
@given(
    steps=st.lists(
        st.one_of(st.tuples(st.just("take"), st.integers(1, 3)), st.tuples(st.just("drop"), st.integers(0, 30))),
        max_size=60,
    ),
    keep=st.integers(1, 4),
)
def test_no_sequence_of_takes_and_deaths_gives_living_memory_away(steps, keep):
    recycler = Recycler(keep)
    living: list[tuple[int, np.ndarray]] = []
    for mark, (step, n) in enumerate(steps):
        if step == "take":
            array = recycler.take(n * LARGE)
            assert array.nbytes == n * LARGE
            array[:] = mark
            living.append((mark, array[-LARGE:]))
            del array
        elif living:
            living.pop(n % len(living))
        for expected, view in living:
            assert view[0] == view[-1] == expected


def test_memory_that_dies_in_another_thread_is_never_lent_twice():
    recycler = Recycler(4)
    handed: queue.Queue[np.ndarray | None] = queue.Queue(3)
    torn: list[int] = []

    def consume() -> None:
        while (array := handed.get()) is not None:
            if not (array == array[0]).all():
                torn.append(int(array[0]))
            del array

    threads = [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(600):
        array = recycler.take(LARGE + i % 7 * 512)
        array[:] = i % 251
        handed.put(array)
        del array
    for _ in threads:
        handed.put(None)
    for thread in threads:
        thread.join()
    assert torn == []


def test_a_death_is_told_once_and_after_the_last_view():
    told: list[str] = []
    memory = np.zeros(100, np.uint8)
    lent = np.frombuffer(memoryview(memory), np.uint8)
    when_dead(lent, lambda: told.append("dead"))
    view, tensor = lent[3:], torch.from_numpy(lent)
    del lent
    assert told == []
    del view
    assert told == []
    del tensor
    gc.collect()
    assert told == ["dead"]
