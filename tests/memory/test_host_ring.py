"""The host ring keeps the contract of rings, and its memory goes with the last process that maps it."""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.contracts.ring import PAGE_BYTES, ReaderCode, RingContract

from penstock.contracts import Ring, WritableRing
from penstock.memory.host_ring import HostRing, WritableHostRing


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


def mappers(inode: int) -> list[str]:
    """The processes that map a file."""
    found: list[str] = []
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            if any(line.split()[4] == str(inode) for line in maps.read_text().splitlines()):
                found.append(maps.parent.name)
    return found


def test_a_readers_descriptor_cannot_be_mapped_for_writing():
    ring = WritableHostRing.create(PAGE_BYTES)
    fd = ring.open_for_readers()
    with pytest.raises(PermissionError):
        mmap.mmap(fd, PAGE_BYTES, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    os.close(fd)
    ring.close()


def test_a_ring_takes_memory_only_where_it_was_written():
    ring = WritableHostRing.create(1 << 30)
    ring.writable(0, PAGE_BYTES)[:] = 1
    ring.writable((1 << 30) - PAGE_BYTES, PAGE_BYTES)[:] = 1
    held_bytes = os.fstat(ring.fd).st_blocks * 512
    assert 2 * PAGE_BYTES <= held_bytes <= 8 << 20  # two pages, or two huge ones
    ring.close()


def test_memory_goes_when_the_last_view_dies():
    ring = WritableHostRing.create(PAGE_BYTES)
    inode = os.fstat(ring.fd).st_ino
    view = ring.readable(0, 10)
    ring.close()
    del ring
    gc.collect()
    assert mappers(inode) == [str(os.getpid())]
    del view
    gc.collect()
    assert mappers(inode) == []


def test_memory_goes_when_the_last_process_that_maps_it_is_killed():
    ring = WritableHostRing.create(PAGE_BYTES)
    inode = os.fstat(ring.fd).st_ino
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
        assert mappers(inode) == [str(child.pid)]
        child.kill()
    assert mappers(inode) == []


def test_a_ring_that_cannot_be_mapped_leaves_no_descriptor():
    before = os.listdir("/proc/self/fd")
    with pytest.raises((OSError, ValueError, OverflowError)):
        WritableHostRing.create(1 << 62)
    assert os.listdir("/proc/self/fd") == before
