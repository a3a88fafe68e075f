"""The contract of every ring: its feeder writes, others read, and nothing is left behind."""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from penstock.contracts import ByteArray, Ring, WritableRing

PAGE_BYTES = os.sysconf("SC_PAGESIZE")

_READ = """
import hashlib, sys
def tell(offset):
    seen = reader.readable(offset, NBYTES)
    print(hashlib.sha256(bytes(seen.tolist())).hexdigest(), flush=True)
    sys.stdin.readline()
tell(OFFSET)
tell(OFFSET)
"""

_WRITE = """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
view = reader.readable(OFFSET, NBYTES)
view[0] = 1
view[:1].tolist()
print("written")
"""


class ReaderCode(NamedTuple):
    """How another process attaches to a ring.

    Attributes:
        code: Python that binds ``reader`` to the attached ring.
        fds: Descriptors that the process inherits with their numbers; closed here afterwards.
    """

    code: str
    fds: tuple[int, ...] = ()


class RingContract(ABC):
    """Tests of a ring; a subclass named ``Test...`` runs them."""

    capacity_bytes = 16 * PAGE_BYTES

    @abstractmethod
    def create(self, capacity_bytes: int) -> WritableRing:
        """Make a new ring, which this process writes."""

    @abstractmethod
    def attach(self, ring: WritableRing) -> Ring:
        """Map a ring as a trainer in this process does."""

    @abstractmethod
    def attach_elsewhere(self, ring: WritableRing) -> ReaderCode:
        """Say how another process attaches to a ring."""

    @pytest.fixture
    def ring(self) -> Iterator[WritableRing]:
        ring = self.create(self.capacity_bytes)
        yield ring
        ring.close()

    @pytest.fixture
    def reader(self, ring: WritableRing) -> Iterator[Ring]:
        reader = self.attach(ring)
        yield reader
        reader.close()

    def seen(self, memory: Any) -> ByteArray:
        """Return what ``readable`` or ``lend`` gave as a NumPy array."""
        return np.asarray(memory)

    def collect(self, reader: Ring) -> None:  # noqa: B027
        """End loans that are due, if the ring does not do that by itself."""

    def test_bytes_that_are_written_are_read(self, ring: WritableRing, reader: Ring) -> None:
        data = _random_bytes(self.capacity_bytes)
        _put(ring, 0, data)
        assert np.array_equal(self.seen(reader.readable(0, self.capacity_bytes)), data)
        assert np.array_equal(self.seen(reader.readable(65, 127)), data[65 : 65 + 127])
        assert np.array_equal(self.seen(ring.readable(PAGE_BYTES - 1, 2)), data[PAGE_BYTES - 1 : PAGE_BYTES + 1])

    def test_a_write_changes_its_own_range_only(self, ring: WritableRing, reader: Ring) -> None:
        before = _random_bytes(self.capacity_bytes)
        _put(ring, 0, before)
        _put(ring, 100, 255 - before[100:150])
        seen = self.seen(reader.readable(0, self.capacity_bytes))
        assert np.flatnonzero(seen != before).tolist() == list(range(100, 150))

    def test_a_new_ring_has_room_for_its_capacity_and_a_kind(self, ring: WritableRing, reader: Ring) -> None:
        assert ring.capacity_bytes == reader.capacity_bytes == self.capacity_bytes
        assert ring.kind
        assert ring.kind == reader.kind
        assert ring.readable(self.capacity_bytes, 0).nbytes == 0

    def test_another_process_reads_what_is_written_and_when_killed_costs_the_others_nothing(
        self, ring: WritableRing, reader: Ring
    ) -> None:
        before, after = _random_bytes(3 * PAGE_BYTES), 255 - _random_bytes(3 * PAGE_BYTES)
        _put(ring, 64, before)
        with self._child(ring, _READ, 64, before.nbytes) as child:
            assert child.stdin is not None and child.stdout is not None
            assert child.stdout.readline() == _digest(before), "written before it attached"
            _put(ring, 64, after)
            print(file=child.stdin, flush=True)
            assert child.stdout.readline() == _digest(after), "written since"
            child.kill()
        _put(ring, 0, _bytes_of(9))
        assert reader.readable(0, 64).tolist() == [9] * 64

    def test_a_reader_that_writes_is_stopped_and_nothing_changes(self, ring: WritableRing) -> None:
        _put(ring, 0, _bytes_of(7))
        with self._child(ring, _WRITE, 0, 64) as child:
            told, _ = child.communicate()
        assert told == ""
        assert child.returncode != 0
        assert ring.readable(0, 64).tolist() == [7] * 64

    def test_a_readers_view_outlives_both_closes(self) -> None:
        ring = self.create(self.capacity_bytes)
        reader = self.attach(ring)
        data = _random_bytes(256)
        _put(ring, 0, data)
        whole = reader.readable(0, 256)
        part = whole[10:20]
        del whole
        reader.close()
        ring.close()
        del reader, ring
        gc.collect()
        assert part.tolist() == data[10:20].tolist()

    def test_a_loan_ends_when_the_last_view_of_it_dies(self, ring: WritableRing, reader: Ring) -> None:
        data = _random_bytes(256)
        _put(ring, 64, data)
        ended: list[str] = []
        lent = reader.lend(64, 256, lambda: ended.append("first"))
        other = reader.lend(64, 100, lambda: ended.append("second"))
        part = lent[200:]
        del lent
        self.collect(reader)
        assert ended == []
        assert part.tolist() == data[200:].tolist()
        del part
        self.collect(reader)
        assert ended == ["first"]
        del other
        self.collect(reader)
        assert ended == ["first", "second"]

    def test_the_writers_range_lies_inside_the_ring(self, ring: WritableRing) -> None:
        for offset, nbytes in ((-1, 1), (0, self.capacity_bytes + 1), (self.capacity_bytes, 1)):
            with pytest.raises((AssertionError, ValueError)):
                ring.write(offset, np.zeros(nbytes, np.uint8))
            with pytest.raises((AssertionError, ValueError)):
                ring.readable(offset, nbytes)

    def test_where_others_write_is_a_ring_on_the_host_that_is_its_own_twin(
        self, ring: WritableRing, reader: Ring
    ) -> None:
        _put(ring.twin, 64, _bytes_of(3))
        ring.written_in_place(64, 64)
        ring.flush()
        assert ring.twin.twin is ring.twin
        assert self.seen(reader.readable(64, 64)).tolist() == [3] * 64

    def test_nothing_lies_in_dev_shm_and_no_descriptor_stays(self) -> None:
        descriptors, in_shm = _descriptors(), _mapped_in_shm()
        ring = self.create(self.capacity_bytes)
        reader = self.attach(ring)
        _put(ring, 0, _bytes_of(1))
        assert not [kept for kept in set(_descriptors()) - set(descriptors) if "/dev/shm" in kept]
        assert _mapped_in_shm() <= in_shm
        ring.close()
        reader.close()
        gc.collect()
        assert _descriptors() == descriptors

    def _child(self, ring: WritableRing, code: str, offset: int, nbytes: int) -> subprocess.Popen[str]:
        attached, fds = self.attach_elsewhere(ring)
        child = subprocess.Popen(
            [sys.executable, "-c", f"{attached}\nOFFSET, NBYTES = {offset}, {nbytes}\n{code}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=fds,
        )
        for fd in fds:
            os.close(fd)
        return child


def _put(ring: WritableRing, offset: int, data: ByteArray) -> None:
    ring.write(offset, data)
    ring.flush()


def _bytes_of(value: int) -> ByteArray:
    return np.full(64, value, np.uint8)


def _random_bytes(nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)


def _digest(data: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> str:
    return f"{hashlib.sha256(data.tobytes()).hexdigest()}\n"


def _descriptors() -> set[str]:
    """List this process's descriptors and their targets."""
    return {f"{fd.name} {os.readlink(fd)}" for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()}


def _mapped_in_shm() -> set[str]:
    """List what this process maps of /dev/shm, where torch keeps what workers have sent."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[5] for line in maps if "/dev/shm" in line}
