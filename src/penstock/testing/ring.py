"""What every ring must do: be written by one process, read by others, and leave nothing behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from penstock.contracts import Ring

PAGE_BYTES = os.sysconf("SC_PAGESIZE")

_READ = """
import hashlib
print(hashlib.sha256(reader.readable(OFFSET, NBYTES).tobytes()).hexdigest())
"""

_READ_WHEN_TOLD = (
    """
import sys
reader.readable(OFFSET, NBYTES).tobytes()
print("mapped", flush=True)
sys.stdin.readline()
"""
    + _READ
)

_WRITE = """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
view = reader.readable(OFFSET, NBYTES)
view[0] = 1
print("written")
"""


class ReaderCode(NamedTuple):
    """How a process of its own attaches to a ring.

    Attributes:
        code: Python that binds ``reader`` to the attached ring.
        fds: Descriptors that the process inherits under the same numbers; closed here afterwards.
    """

    code: str
    fds: tuple[int, ...] = ()


class RingContract(ABC):
    """The tests of a ring; a subclass named ``Test...`` runs them."""

    capacity_bytes = 16 * PAGE_BYTES

    @abstractmethod
    def create(self, capacity_bytes: int) -> Ring:
        """A new ring, which this process writes."""

    @abstractmethod
    def attach(self, ring: Ring) -> Ring:
        """The same ring as a trainer in this process sees it."""

    @abstractmethod
    def attach_elsewhere(self, ring: Ring) -> ReaderCode:
        """The same ring as another process attaches to it."""

    def test_bytes_that_are_written_are_read(self) -> None:
        ring = self.create(self.capacity_bytes)
        reader = self.attach(ring)
        data = _random_bytes(self.capacity_bytes)
        ring.writable(0, self.capacity_bytes)[:] = data
        assert np.array_equal(reader.readable(0, self.capacity_bytes), data)
        assert np.array_equal(reader.readable(65, 127), data[65 : 65 + 127])
        assert np.array_equal(ring.readable(PAGE_BYTES - 1, 2), data[PAGE_BYTES - 1 : PAGE_BYTES + 1])
        ring.close()
        reader.close()

    def test_a_write_changes_its_own_range_only(self) -> None:
        ring = self.create(self.capacity_bytes)
        reader = self.attach(ring)
        before = _random_bytes(self.capacity_bytes)
        ring.writable(0, self.capacity_bytes)[:] = before
        ring.writable(100, 50)[:] = 255 - before[100:150]
        seen = np.array(reader.readable(0, self.capacity_bytes))
        assert np.flatnonzero(seen != before).tolist() == list(range(100, 150))
        ring.close()
        reader.close()

    def test_a_new_ring_has_room_for_its_capacity_and_a_kind(self) -> None:
        ring = self.create(self.capacity_bytes)
        reader = self.attach(ring)
        assert ring.capacity_bytes == reader.capacity_bytes == self.capacity_bytes
        assert ring.kind
        assert ring.kind == reader.kind
        assert ring.readable(self.capacity_bytes, 0).nbytes == 0
        ring.close()
        reader.close()

    def test_another_process_reads_what_was_written_before_it_attached(self) -> None:
        ring = self.create(self.capacity_bytes)
        data = _random_bytes(3 * PAGE_BYTES)
        ring.writable(PAGE_BYTES, data.nbytes)[:] = data
        with self._child(ring, _READ, PAGE_BYTES, data.nbytes) as child:
            told, _ = child.communicate()
        assert told.split() == [_digest(data)]
        assert child.returncode == 0
        ring.close()

    def test_another_process_reads_what_was_written_after_it_attached(self) -> None:
        ring = self.create(self.capacity_bytes)
        data = _random_bytes(3 * PAGE_BYTES)
        with self._child(ring, _READ_WHEN_TOLD, 64, data.nbytes) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "mapped\n"
            ring.writable(64, data.nbytes)[:] = data
            told, _ = child.communicate("go\n")
        assert told.split() == [_digest(data)]
        assert child.returncode == 0
        ring.close()

    def test_a_reader_that_writes_is_stopped_and_nothing_changes(self) -> None:
        ring = self.create(self.capacity_bytes)
        ring.writable(0, 64)[:] = 7
        with self._child(ring, _WRITE, 0, 64) as child:
            told, _ = child.communicate()
        assert told == ""
        assert child.returncode != 0
        assert ring.readable(0, 64).tolist() == [7] * 64
        ring.close()

    def test_a_killed_reader_costs_the_others_nothing(self) -> None:
        ring = self.create(self.capacity_bytes)
        reader = self.attach(ring)
        with self._child(ring, _READ_WHEN_TOLD, 0, 64) as child:
            assert child.stdout is not None
            child.stdout.readline()
            child.kill()
        ring.writable(0, 64)[:] = 9
        assert reader.readable(0, 64).tolist() == [9] * 64
        ring.close()
        reader.close()

    def test_a_readers_view_outlives_both_closes(self) -> None:
        ring = self.create(self.capacity_bytes)
        reader = self.attach(ring)
        data = _random_bytes(256)
        ring.writable(0, 256)[:] = data
        whole = reader.readable(0, 256)
        part = whole[10:20].view(np.uint16)
        del whole
        reader.close()
        ring.close()
        del reader, ring
        gc.collect()
        assert np.array_equal(part.view(np.uint8), data[10:20])

    def test_the_writers_view_outlives_its_close(self) -> None:
        ring = self.create(self.capacity_bytes)
        reader = self.attach(ring)
        view = ring.writable(0, 64)
        ring.close()
        view[:] = 3
        assert reader.readable(0, 64).tolist() == [3] * 64
        reader.close()

    def test_the_writers_range_lies_inside_the_ring(self) -> None:
        ring = self.create(self.capacity_bytes)
        for offset, nbytes in ((-1, 1), (0, self.capacity_bytes + 1), (self.capacity_bytes, 1)):
            with pytest.raises((AssertionError, ValueError)):
                ring.writable(offset, nbytes)
            with pytest.raises((AssertionError, ValueError)):
                ring.readable(offset, nbytes)
        ring.close()

    def test_only_the_maker_of_a_ring_may_write(self) -> None:
        ring = self.create(self.capacity_bytes)
        reader = self.attach(ring)
        with pytest.raises((AssertionError, ValueError)):
            reader.writable(0, 1)
        ring.close()
        reader.close()

    def test_nothing_lies_in_dev_shm_and_no_descriptor_stays(self) -> None:
        descriptors = _descriptors()
        ring = self.create(self.capacity_bytes)
        reader = self.attach(ring)
        ring.writable(0, 64)[:] = 1
        for kept in (*_descriptors(), Path("/proc/self/maps").read_text()):
            assert "/dev/shm" not in kept
        ring.close()
        reader.close()
        del ring, reader
        gc.collect()
        assert _descriptors() == descriptors

    def _child(self, ring: Ring, code: str, offset: int, nbytes: int) -> subprocess.Popen[str]:
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


def _random_bytes(nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)


def _digest(data: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> str:
    import hashlib

    return hashlib.sha256(data.tobytes()).hexdigest()


def _descriptors() -> set[str]:
    """What the descriptors of this process stand for."""
    return {f"{fd.name} {os.readlink(fd)}" for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()}
