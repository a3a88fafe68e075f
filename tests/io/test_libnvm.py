"""A disk behind the queues: the driver, and the device's code run by threads of the CPU, against a fake disk."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.contracts import ByteArray, Extents, Opened, Reader
from penstock.errors import BadSetting, ReaderUnavailable, ReadFailed
from penstock.io.mechanisms import open_reader
from penstock.io.memory import host_memory
from penstock.io.nvme import layout
from penstock.io.nvme.first_path import queue_into
from penstock.io.nvme.libnvm import module
from penstock.io.nvme.libnvm.admin import (
    CREATE_CQ,
    CREATE_SQ,
    DELETE_CQ,
    DELETE_SQ,
    IDENTIFY,
    SET_FEATURES,
    Admin,
)
from penstock.io.nvme.libnvm.controller import DiskController
from penstock.io.nvme.libnvm.registers import CC
from penstock.io.nvme.queue import GpuQueue
from penstock.io.queue import Queue, Reads, Results
from penstock.io.reader import QueueReader
from penstock.testing.nvme_admin import Traits
from penstock.testing.nvme_disk import FakeDisk, FakeModule
from penstock.testing.queue import FaultyQueue
from penstock.testing.reader import MEMORY_BYTES, UNTOUCHED, ReaderContract, extents_of, new_memory, read_all

DISK = "/dev/libnvm0"
BAD_BLOCK = 0x4000 | layout.UNRECOVERED_READ_ERROR  # and there is no use in trying again


def queue_on(
    disk: FakeDisk, memory: ByteArray, *, depth: int = 16, threads: int = 3, nsid: int = 1, **options: Any
) -> GpuQueue:
    refuses_after = options.pop("refuses_after", None)
    controller = DiskController(
        FakeModule(disk, DISK, refuses_after), nsid, depth=depth, queues=options.pop("queues", threads), **options
    )
    return queue_into(memory, controller, threads, None)


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

    def __init__(self, queue: Queue, names: dict[str, tuple[int, int]]) -> None:
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
    faults: Mapping[str, float] = MappingProxyType({})

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
        queue: Queue = Files(
            inner if self.faults is None else FaultyQueue(inner, seed=3, **self.faults), self.names
        )
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
    faults = MappingProxyType({"shorts": 0.4, "repeats": 0.2})


SHAPES = [
    Traits(),
    Traits(entries=3, queues=1, mdts=1, doorbell_stride_log2=3),
    Traits(block_bytes=4096, entries=16, mdts=0),
    Traits(entries=5, queues=64, mdts=2, doorbell_stride_log2=1),
]


@pytest.mark.parametrize("traits", SHAPES)
@pytest.mark.parametrize("threads", [1, 5])
def test_every_byte_of_many_random_reads_is_right_and_every_bad_block_is_told(
    traits: Traits, threads: int
) -> None:
    """Queues of 2 to 64 entries wrap hundreds of times; a wrong PRP would read into another page, or none."""
    rng = np.random.default_rng(threads)
    block, blocks, count, depth, room = traits.block_bytes, 700, 4000, 32, 32_768
    contents = {nsid: rng.bytes(block * blocks) for nsid in (1, 2)}
    bad = {(int(rng.integers(1, 3)), int(lba)): BAD_BLOCK for lba in rng.integers(0, blocks, 10)}
    memory = host_memory(depth * room)
    nsids = rng.integers(1, 3, count)
    nbytes = rng.integers(1, room - 512, count)
    offsets = (rng.random(count) * (blocks * block - nbytes)).astype(np.int64)
    whole = rng.random(count) < 0.8
    nbytes[whole] = np.maximum(block, nbytes[whole] // block * block)
    offsets[whole] = offsets[whole] // block * block
    free, slot_of = list(range(depth)), dict[int, int]()
    asked = failed = 0
    with FakeDisk(contents, traits, bad, seed=threads) as disk:
        reader = reader_on(disk, memory, depth=depth, threads=threads)
        files = np.array([reader.open(f"{DISK}n{nsid}").file for nsid in (1, 2)])
        while asked < count or slot_of:
            tags = np.arange(asked, min(asked + len(free), count))
            slots = np.array([free.pop() for _ in tags], np.int64)
            slot_of |= dict(zip(tags.tolist(), slots.tolist(), strict=True))
            asked += reader.submit(
                Extents(tags, files[nsids[tags] - 1], offsets[tags], nbytes[tags], slots * room)
            )
            done = reader.completed(1)
            for tag in done.tags.tolist():
                free.append(slot := slot_of.pop(tag))
                start, end, nsid = int(offsets[tag]), int(offsets[tag] + nbytes[tag]), int(nsids[tag])
                failure = done.failures.get(tag)
                touched = range(start // block, -(-end // block))
                assert (failure is not None) == any((nsid, lba) in bad for lba in touched)
                if failure is None:
                    to = slot * room
                    assert memory[to : to + end - start].tobytes() == contents[nsid][start:end]
                else:
                    assert failure.errno == errno.EIO
                    assert "unrecovered read error" in str(failure)
                    failed += 1
        reader.close()
        settled(disk)
    assert failed


@settings(max_examples=20, deadline=None)
@given(
    within=st.integers(0, 1023).map(lambda words: 4 * words),
    blocks=st.integers(1, 80),
    lba=st.integers(0, 20),
    mdts=st.integers(0, 4),
    seed=st.integers(0, 99),
)
def test_a_read_into_any_part_of_any_page_touches_nothing_else(
    within: int, blocks: int, lba: int, mdts: int, seed: int
) -> None:
    content = np.random.default_rng(seed).bytes(512 * 100)
    memory = new_memory()
    with FakeDisk({1: content}, Traits(mdts=mdts), seed=seed) as disk:
        queue = queue_on(disk, memory)
        file, _ = queue.open(DISK)
        wanted = came = 512 * blocks
        while wanted:  # in as many commands as it takes
            done = 512 * blocks - wanted
            queue.push(
                Reads(*np.array([[1], [file], [512 * lba + done], [wanted], [memory.ctypes.data + within + done]]))
            )
            (came,) = queue.pop(1).nbytes.tolist()
            assert 0 < came <= disk.traits.max_read_bytes
            wanted -= came
        queue.close()
        settled(disk)
    expected = np.full(MEMORY_BYTES, UNTOUCHED, np.uint8)
    expected[within : within + 512 * blocks] = np.frombuffer(content, np.uint8)[512 * lba : 512 * (lba + blocks)]
    np.testing.assert_array_equal(memory, expected)


def test_queues_are_made_one_after_the_other_and_deleted_before_the_disk_is_turned_off() -> None:
    with FakeDisk({1: bytes(4096)}, Traits(queues=2)) as disk:
        reader = reader_on(disk, new_memory(), depth=1000, threads=3)
        assert sorted(disk.sqs) == sorted(disk.cqs) == [0, 1, 2]
        assert reader.path_taken.startswith(
            f"GPU-initiated (3 threads on the CPU), 2 queues of 64 entries, disk-served: FAKE DISK, {DISK}, "
            "blocks of 512 bytes"
        )
        reader.close()
        settled(disk)
        created = [IDENTIFY, IDENTIFY, SET_FEATURES, CREATE_CQ, CREATE_SQ, CREATE_CQ, CREATE_SQ]
        assert disk.admin == [*created, DELETE_SQ, DELETE_CQ, DELETE_SQ, DELETE_CQ]


def test_a_disk_that_its_last_user_left_running_is_reset() -> None:
    content = np.random.default_rng(1).bytes(65_536)
    with FakeDisk({1: content}) as disk:
        left = queue_on(disk, new_memory())
        left._submitter.close()  # as if its process had been killed: the disk runs on, its queues in our memory
        disk.taken = False
        memory = new_memory()
        reader = reader_on(disk, memory)
        file, nbytes = reader.open(DISK)
        assert not read_all(reader, extents_of(file, [0], [nbytes], [0])).failures
        assert memory[:nbytes].tobytes() == content
        reader.close()
        assert not disk.wrongs


def test_a_namespace_is_a_file_of_its_size() -> None:
    with FakeDisk({1: bytes(1024), 3: bytes(5120)}) as disk:
        reader = reader_on(disk, new_memory())
        assert reader.open(DISK) == reader.open(f"{DISK}n1") == Opened(1, 1024)
        assert reader.open(f"{DISK}n3") == Opened(3, 5120)
        for path, why in (
            (f"{DISK}n2", "namespace 2.*has no blocks"),
            (f"{DISK}n33", "no namespace 33.*end at 32"),
            ("/dev/libnvm1", "this reader reads the disk /dev/libnvm0"),
            ("/etc/passwd", "this reader reads the disk /dev/libnvm0"),
        ):
            with pytest.raises(ReaderUnavailable, match=why):
                reader.open(path)
        reader.close()
        settled(disk)


@pytest.mark.parametrize(
    ("traits", "why"),
    [
        (Traits(refuses=frozenset({IDENTIFY})), "refuses to identify itself: internal error"),
        (Traits(refuses=frozenset({SET_FEATURES})), "refuses to give queues"),
        (Traits(refuses=frozenset({CREATE_CQ})), "refuses to create queue 1 of 64 entries"),
        (Traits(refuses=frozenset({CREATE_SQ})), "refuses to create queue 1"),
        (Traits(metadata_bytes=8), "8 bytes of metadata"),
        (Traits(least_page_log2=1), "pages of 8192 bytes"),
        (Traits(command_sets=2), "has none"),
    ],
)
def test_a_disk_that_cannot_be_used_is_told_and_turned_off(traits: Traits, why: str) -> None:
    with FakeDisk({1: bytes(4096)}, traits) as disk:
        with pytest.raises(ReaderUnavailable, match=why):
            reader_on(disk, new_memory())
        settled(disk)


@pytest.mark.parametrize("room", [0, 12_288, MEMORY_BYTES])
def test_memory_that_is_refused_is_told_and_the_disk_turned_off(room: int) -> None:
    """At the admin queue, at the queues, and at the memory to read into."""
    with FakeDisk({1: bytes(4096)}) as disk:
        with pytest.raises(ReaderUnavailable, match="no room"):
            reader_on(disk, new_memory(), refuses_after=room)
        settled(disk)


def test_no_threads_to_submit_leave_the_disk_turned_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with FakeDisk({1: bytes(4096)}) as disk:
        with pytest.raises(ReaderUnavailable, match=r"C\+\+ compiler"):
            reader_on(disk, new_memory())
        settled(disk)


def test_a_disk_that_never_becomes_ready_is_told() -> None:
    with FakeDisk({1: bytes(4096)}) as disk:
        disk.starts = False
        with pytest.raises(ReaderUnavailable, match=r"does not become ready: not within the 0\.5 s"):
            reader_on(disk, new_memory())
        settled(disk)


def test_a_disk_that_does_not_stop_keeps_the_memory() -> None:
    """It may still write there: nobody else must get it."""
    with FakeDisk({1: bytes(4096)}) as disk:
        reader = reader_on(disk, new_memory())
        disk.stops = False
        with pytest.raises(ReaderUnavailable, match="does not stop"):
            reader.close()
        assert disk.bus.count > 0
        assert not disk.taken
        assert not disk.wrongs


def test_a_disk_that_is_given_wrong_addresses_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has 50 s to become ready, and the command 60 s; nobody waits for those."""
    right = FakeModule.map_host
    for wrong, why in ((8, "does not become ready: it has failed"), (4096, "does not identify itself: the disk")):
        monkeypatch.setattr(
            FakeModule, "map_host", lambda self, memory, by=wrong: right(self, memory) + np.uint64(by)
        )
        with FakeDisk({1: bytes(4096)}, Traits(ready_limit=100)) as disk:
            with pytest.raises(ReaderUnavailable, match=why):
                reader_on(disk, new_memory())
            assert disk.wrongs
            assert disk.bus.count == 0


@pytest.mark.parametrize("how", ["fatal", "silent", "off the bus", "turned off"])
def test_a_disk_that_fails_while_it_reads_is_told_to_whoever_waits(how: str) -> None:
    memory = new_memory()
    with FakeDisk({1: bytes(MEMORY_BYTES)}) as disk:
        if how == "fatal":
            disk.fatal_after = 5
        else:
            disk.silent_after = 5
        reader = reader_on(disk, memory, patience_s=0.2 if how == "silent" else 30)
        file, _ = reader.open(DISK)
        at = [4096 * i for i in range(16)]
        reader.submit(extents_of(file, at, [4096] * 16, at))
        if how == "off the bus":
            disk.leave_the_bus()
        elif how == "turned off":
            disk.registers[CC] = 0
        why = {
            "fatal": "has failed",
            "silent": "completed no read",
            "off the bus": "on the bus",
            "turned off": "else",
        }
        with pytest.raises(ReaderUnavailable, match=why[how]):
            reader.completed(16)
        with pytest.raises(ReaderUnavailable, match=why[how]):
            reader.close()
        assert not disk.wrongs
        assert disk.bus.count == 0
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("penstock-")]


def test_a_status_that_nobody_knows_is_told_by_its_number() -> None:
    with FakeDisk({1: bytes(8192)}, bad_blocks={(1, 8): 0x7234}) as disk:  # with more, do not retry
        reader = reader_on(disk, new_memory())
        done = read_all(reader, extents_of(reader.open(DISK).file, [0, 4096], [4096, 4096], [0, 4096]))
        reader.close()
    ((tag, failure),) = done.failures.items()
    assert tag == 1
    assert isinstance(failure, ReadFailed)
    assert failure.errno == errno.EIO
    assert "type 2, code 0x34" in str(failure)


def test_a_command_that_is_not_answered_has_a_limit() -> None:
    with FakeDisk({1: bytes(4096)}) as disk:
        admin = Admin(disk_module := FakeModule(disk), limit_s=0.05)
        admin.reset()
        disk.cqs[0].post = lambda: False
        with pytest.raises(ReaderUnavailable, match=r"does not identify itself: no answer within 0\.05 s"):
            admin.identify(1)
        admin.disable()
        disk_module.close()
        settled(disk)


def test_the_first_path_decides_who_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(4096))
    with FakeDisk({1: bytes(4096)}) as disk:
        monkeypatch.setattr(module, "LibnvmModule", lambda path: FakeModule(disk, path))
        reader = open_reader("gpu", new_memory(), threads=2)
        file, _ = reader.open(DISK)
        assert "disk-served" in reader.path_taken
        assert not read_all(reader, extents_of(file, [1], [4000], [3])).failures
        with pytest.raises(ReaderUnavailable, match="make another"):
            reader.open(str(tmp_path / "file"))
        reader.close()
        settled(disk)
        reader = open_reader("gpu", new_memory())
        reader.open(str(tmp_path / "file"))
        assert "CPU-served" in reader.path_taken
        with pytest.raises(ReaderUnavailable, match="is a disk, and this reader reads files"):
            reader.open(DISK)
        reader.close()


@pytest.mark.parametrize("mech", ["posix", "direct", "uring"])
def test_other_mechanisms_refuse_such_a_disk(mech: str) -> None:
    reader = open_reader(mech, new_memory())
    with pytest.raises(ReaderUnavailable, match="read it with mech='gpu'"):
        reader.open(DISK)
    reader.close()
