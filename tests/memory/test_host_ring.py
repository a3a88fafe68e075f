"""The host ring keeps the contract of rings; its memory goes with its last mapping, and unused pages at once."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.contracts.ring import PAGE_BYTES, ReaderCode, RingContract
from tests.examples import examples

from penstock.contracts import Ring, WritableRing
from penstock.memory.host_ring import LOOK_S, HostRing, UnusedPages, WritableHostRing
from penstock.memory.room import Room


class TestHostRing(RingContract):
    def create(self, capacity_bytes: int) -> WritableRing:
        return WritableHostRing.create(capacity_bytes)

    def attach(self, ring: WritableRing) -> Ring:
        reader = HostRing.attach(fd := ring.open_for_readers(), ring.capacity_bytes)
        os.close(fd)
        return reader

    def attach_elsewhere(self, ring: WritableRing) -> ReaderCode:
        fd = ring.open_for_readers()
        return ReaderCode(
            "from penstock.memory.host_ring import HostRing\n"
            f"reader = HostRing.attach({fd}, {ring.capacity_bytes})",
            (fd,),
        )


def place(fd: int) -> list[str]:
    """A file as /proc/PID/maps names it; other devices have files of equal numbers."""
    file = os.fstat(fd)
    return [f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}", str(file.st_ino)]


def mappers(place: list[str]) -> list[str]:
    """The processes that map a file."""
    found: list[str] = []
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            if any(line.split()[3:5] == place for line in maps.read_text().splitlines()):
                found.append(maps.parent.name)
    return found


def test_a_ring_takes_memory_only_where_it_was_written():
    ring = WritableHostRing.create(1 << 30)
    ring.writable(0, PAGE_BYTES)[:] = 1
    ring.writable((1 << 30) - PAGE_BYTES, PAGE_BYTES)[:] = 1
    held_bytes = os.fstat(ring.fd).st_blocks * 512
    assert 2 * PAGE_BYTES <= held_bytes <= 8 << 20  # two pages, or two huge ones
    ring.close()


def test_memory_goes_when_the_last_view_dies():
    ring = WritableHostRing.create(PAGE_BYTES)
    file = place(ring.fd)
    view = ring.readable(0, 10)
    ring.close()
    del ring
    gc.collect()
    assert mappers(file) == [str(os.getpid())]
    del view
    gc.collect()
    assert mappers(file) == []


def test_memory_goes_when_the_last_process_that_maps_it_is_killed():
    ring = WritableHostRing.create(PAGE_BYTES)
    file = place(ring.fd)
    fd = ring.open_for_readers()
    code = (
        f"from penstock.memory.host_ring import HostRing; ring = HostRing.attach({fd}, {PAGE_BYTES}); "
        "print(ring.readable(0, 1)[0], flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], pass_fds=[fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        os.close(fd)
        assert child.stdout is not None
        assert child.stdout.readline() == b"0\n"
        ring.close()
        del ring
        gc.collect()
        assert mappers(file) == [str(child.pid)]
        child.kill()
    assert mappers(file) == []


def test_a_ring_that_cannot_be_mapped_leaves_no_descriptor():
    before = os.listdir("/proc/self/fd")
    with pytest.raises((OSError, ValueError, OverflowError)):
        WritableHostRing.create(1 << 62)
    assert os.listdir("/proc/self/fd") == before


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
TestUsed.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)


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
