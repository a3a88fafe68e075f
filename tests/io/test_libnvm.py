"""A disk behind the queues: the real driver and the device's code, run by threads of the CPU, against a fake disk."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.contracts import ByteArray, Opened, Reader
from penstock.errors import BadSetting, ReaderUnavailable, ReadFailed
from penstock.io.mechanisms import open_reader
from penstock.io.nvme import layout
from penstock.io.nvme.first_path import begun_by
from penstock.io.nvme.libnvm import module
from penstock.io.nvme.libnvm.admin import CREATE_CQ, CREATE_SQ, DELETE_CQ, DELETE_SQ, IDENTIFY, SET_FEATURES
from penstock.io.nvme.libnvm.controller import DiskController
from penstock.io.nvme.queue import GpuQueue
from penstock.io.queue import Queue, Reads, Results
from penstock.io.reader import QueueReader
from penstock.testing.nvme_admin import Traits
from penstock.testing.nvme_disk import FakeDisk, FakeModule
from penstock.testing.queue import FaultyQueue
from penstock.testing.reader import MEMORY_BYTES, ReaderContract, extents_of, new_memory, read_all

DISK = "/dev/libnvm0"


def queue_on(
    disk: FakeDisk, memory: ByteArray, *, depth: int = 16, threads: int = 3, nsid: int = 1, **options: Any
) -> GpuQueue:
    refuses_after = options.pop("refuses_after", None)
    controller = DiskController(
        FakeModule(disk, DISK, refuses_after), nsid, depth=depth, queues=options.pop("queues", threads), **options
    )
    queue = begun_by(threads, None, controller)
    queue.reach(memory)
    return queue


def reader_on(disk: FakeDisk, memory: ByteArray, **options: Any) -> QueueReader:
    queue = queue_on(disk, memory, **options)
    return QueueReader(queue, memory, queue.new_buffer)


def settled(disk: FakeDisk) -> None:
    """What must hold after a reader is closed, however it came to that."""
    assert not disk.wrongs
    assert not disk.enabled
    assert disk.bus.count == 0
    assert not disk.taken
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("penstock-")]


class Files:
    """Namespaces of a disk as files of any size: what lies behind a file's last byte was not read."""

    def __init__(self, queue: GpuQueue | FaultyQueue, names: dict[str, tuple[int, int]]) -> None:
        self.mech, self.depth, self._queue, self._names = queue.mech, queue.depth, queue, names
        self._sizes: dict[int, int] = {}
        self._rooms: dict[int, int] = {}

    @property
    def alignment(self) -> int:
        return self._queue.alignment

    @property
    def path_taken(self) -> str:
        return self._queue.path_taken

    def open(self, path: str) -> Opened:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "there is no such namespace", path)
        nsid, nbytes = self._names[path]
        assert self._queue.open(f"{DISK}n{nsid}").file == nsid
        self._sizes[nsid] = nbytes
        return Opened(nsid, nbytes)

    def push(self, reads: Reads) -> None:
        for i, file, offset, *_ in zip(*(field.tolist() for field in reads), strict=True):
            self._rooms[i] = max(0, self._sizes[file] - offset)
        self._queue.push(reads)

    def pop(self, at_least: int) -> Results:
        ids, nbytes, reasons = self._queue.pop(at_least)
        rooms = np.array([self._rooms[i] for i in ids.tolist()], np.int64)
        return Results(ids, np.minimum(nbytes, rooms), reasons)

    def close(self) -> None:
        self._queue.close()


class DiskContract(ReaderContract):
    """The suite of readers on a disk whose namespaces stand for files."""

    traits = Traits()
    faults: dict[str, float] | None = None

    @pytest.fixture(autouse=True)
    def _disk(self) -> Iterator[None]:
        self.names: dict[str, tuple[int, int]] = {}
        with FakeDisk({1: bytes(4096)}, self.traits) as self.disk:
            yield
        settled(self.disk)

    def make(self, memory: ByteArray, depth: int) -> Reader:
        if not 1 <= depth <= 4096:
            raise BadSetting(f"depth={depth}: it lies between 1 and 4096")
        inner = queue_on(self.disk, memory, depth=depth)
        queue: Queue = Files(inner if self.faults is None else FaultyQueue(inner, seed=3, **self.faults), self.names)
        return QueueReader(queue, memory, inner.new_buffer)

    def put(self, name: str, content: bytes) -> str:
        nsid, _ = self.names.get(name, (len(self.names) + 2, 0))
        self.names[name] = nsid, len(content)
        self.disk.namespaces[nsid] = content + bytes(-len(content) % self.traits.block_bytes)
        return name

    def missing(self) -> str:
        return "missing"


class TestDisk(DiskContract):
    pass


class TestDiskOfLargeBlocksAndSmallQueues(DiskContract):
    traits = Traits(block_bytes=4096, entries=4, queues=2, mdts=1, doorbell_stride_log2=2, ready_s=0.05)
    faults = {"shorts": 0.4, "repeats": 0.2}


SHAPES = [
    Traits(),
    Traits(entries=3, queues=1, mdts=1, doorbell_stride_log2=3),
    Traits(block_bytes=4096, entries=16, mdts=0),
    Traits(entries=5, queues=64, mdts=2, doorbell_stride_log2=1),
]


@pytest.mark.parametrize("traits", SHAPES)
@pytest.mark.parametrize("threads", [1, 5])
def test_every_byte_of_many_random_reads_is_right_and_every_bad_block_is_told(traits: Traits, threads: int) -> None:
    """Queues of 2 to 64 entries wrap hundreds of times; a wrong PRP would read into another page, or none."""
    rng = np.random.default_rng(threads)
    block, count, depth = traits.block_bytes, 4000, 32
    contents = {nsid: rng.bytes(block * 700) for nsid in (1, 2)}
    bad = {(int(rng.integers(1, 3)), int(lba)): 0x4281 for lba in rng.integers(0, 700, 10)}
    memory = np.zeros(depth * 32_768 + 4096, np.uint8)[8:]  # it begins anywhere
    with FakeDisk(contents, traits, bad, seed=threads) as disk:
        reader = reader_on(disk, memory, depth=depth, threads=threads)
        files = np.array([reader.open(f"{DISK}n{nsid}").file for nsid in (1, 2)])
        skip = -memory.ctypes.data % 4
        tags = np.arange(count)
        nsids = rng.integers(1, 3, count)
        nbytes = rng.integers(1, 32_000, count)
        aligned = rng.random(count) < 0.8
        nbytes[aligned] = np.maximum(block, nbytes[aligned] // block * block)
        offsets = (rng.random(count) * (700 * block - nbytes)).astype(np.int64)
        offsets[aligned] = offsets[aligned] // block * block
        done = 0
        slots = {i: i for i in range(depth)}
        from penstock.contracts import Extents

        asked = 0
        where: dict[int, int] = {}
        free = list(slots)
        failed = 0
        while done < count:
            n = min(len(free), count - asked)
            mine = np.array([free.pop() for _ in range(n)], np.int64)
            part = tags[asked : asked + n]
            to = mine * 32_768 + skip
            where |= dict(zip(part.tolist(), mine.tolist(), strict=True))
            assert n == reader.submit(Extents(part, files[nsids[part] - 1], offsets[part], nbytes[part], to))
            asked += n
            came = reader.completed(1)
            for tag in came.tags.tolist():
                slot = where.pop(tag)
                free.append(slot)
                start, size, nsid = int(offsets[tag]), int(nbytes[tag]), int(nsids[tag])
                touched = range(start // block, -(-(start + size) // block))
                failure = came.failures.get(tag)
                assert (failure is not None) == any((nsid, lba) in bad for lba in touched)
                if failure is None:
                    at = slot * 32_768 + skip
                    assert memory[at : at + size].tobytes() == contents[nsid][start : start + size]
                else:
                    assert failure.errno == errno.EIO
                    assert "unrecovered read error" in str(failure)
                    failed += 1
            done += len(came.tags)
        reader.close()
        assert failed
        settled(disk)
