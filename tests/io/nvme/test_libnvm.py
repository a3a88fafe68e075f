"""A disk behind the queues: the driver, and the device's code run by threads of the CPU, against a fake disk."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.nvme_admin import Traits
from tests.fakes.nvme_disk import FakeDisk
from tests.io.fake_disks import BAD_BLOCK, DISK, queue_on, reader_on, settled
from tests.io.reading import in_slots, read_once
from tests.support.contracts import READING, only

from penstock.contracts import ByteArray, Opened, Reader
from penstock.errors import BadSetting, ReaderUnavailable
from penstock.io.nvme.admin import CREATE_CQ, CREATE_SQ, DELETE_CQ, DELETE_SQ, IDENTIFY, SET_FEATURES
from penstock.io.queue import Queue, Reads, Results
from penstock.io.reader import QueueReader, host_memory
from penstock.testing.faulty_queue import FaultyQueue
from penstock.testing.reader import MEMORY_BYTES, UNTOUCHED, ReaderContract, new_memory


class Files(FaultyQueue):
    """Namespaces of a disk as files of any size: what lies behind a file's last byte was not read."""

    def __init__(self, queue: Queue, names: dict[str, tuple[int, int]], **faults: float) -> None:
        super().__init__(queue, seed=3, **faults)
        self._names = names
        self._sizes: dict[int, int] = {}
        self._rooms: dict[int, int] = {}

    def open(self, path: str) -> Opened:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "there is no such namespace", path)
        nsid, nbytes = self._names[path]
        assert super().open(f"{DISK}n{nsid}").file == nsid
        self._sizes[nsid] = nbytes
        return Opened(nsid, nbytes)

    def push(self, reads: Reads) -> None:
        for i, file, offset, *_ in zip(*(field.tolist() for field in reads), strict=True):
            self._rooms[i] = max(0, self._sizes[file] - offset)
        super().push(reads)

    def pop(self, at_least: int) -> Results:
        ids, nbytes, reasons = super().pop(at_least)
        rooms = np.array([self._rooms[i] for i in ids.tolist()], np.int64)
        return Results(ids, np.minimum(nbytes, rooms), reasons)


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
            raise BadSetting(f"depth={depth}: it must lie between 1 and 4096")
        inner = queue_on(self.disk, memory, depth=depth)
        return QueueReader(Files(inner, self.names, **self.faults), memory, inner.new_buffer)

    def put(self, name: str, content: bytes) -> str:
        nsid, _ = self.names.get(name, (len(self.names) + 2, 0))
        self.names[name] = nsid, len(content)
        self.disk.namespaces[nsid] = content + bytes(-len(content) % self.traits.block_bytes)
        return name

    def missing(self) -> str:
        return "missing"


class TestDisk(DiskContract):
    pass


@only(*READING)
class TestDiskOfLargeBlocksAndSmallQueues(DiskContract):
    traits = Traits(block_bytes=4096, entries=4, queues=2, mdts=1, doorbell_stride_log2=2, ready_s=0.05)
    faults = MappingProxyType({"shorts": 0.4, "repeats": 0.2})


SHAPES = [
    Traits(),
    Traits(entries=3, queues=1, mdts=1, doorbell_stride_log2=3),
    Traits(block_bytes=4096, entries=16, mdts=0),
    Traits(entries=5, queues=64, mdts=2, doorbell_stride_log2=1),
]


@pytest.mark.parametrize("count", [1000, pytest.param(20_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("traits", "threads"), [*zip(SHAPES, (1, 5, 1, 5), strict=True)])
def test_every_byte_of_many_random_reads_is_right_and_every_bad_block_is_told(traits, threads, count):
    """Queues of 2 to 64 entries wrap many times; a wrong PRP would read into another page, or none."""
    rng = np.random.default_rng(threads)
    block, blocks, depth, room = traits.block_bytes, 700, 32, 32_768
    contents = {nsid: rng.bytes(block * blocks) for nsid in (1, 2)}
    bad = {(int(rng.integers(1, 3)), int(lba)): BAD_BLOCK for lba in rng.integers(0, blocks, 10)}
    memory = host_memory(depth * room)
    nsids = rng.integers(1, 3, count)
    nbytes = rng.integers(1, room - 512, count)
    offsets = (rng.random(count) * (blocks * block - nbytes)).astype(np.int64)
    whole = rng.random(count) < 0.8
    nbytes[whole] = np.maximum(block, nbytes[whole] // block * block)
    offsets[whole] = offsets[whole] // block * block
    failed = 0
    with FakeDisk(contents, traits, bad, seed=threads) as disk:
        reader = reader_on(disk, memory, depth=depth, threads=threads)
        files = np.array([reader.open(f"{DISK}n{nsid}").file for nsid in (1, 2)])
        for tag, came, failure in in_slots(reader, memory, depth, files[nsids - 1], offsets, nbytes):
            start, end, nsid = int(offsets[tag]), int(offsets[tag] + nbytes[tag]), int(nsids[tag])
            touched = range(start // block, -(-end // block))
            assert (failure is not None) == any((nsid, lba) in bad for lba in touched)
            if failure is None:
                assert came == contents[nsid][start:end]
            else:
                assert failure.errno == errno.EIO
                assert "unrecovered read error" in str(failure)
                failed += 1
        reader.close()
        settled(disk)
    assert failed


@settings(max_examples=examples(15))
@given(
    within=st.integers(0, 1023).map(lambda words: 4 * words),
    blocks=st.integers(1, 80),
    lba=st.integers(0, 20),
    mdts=st.integers(0, 4),
    seed=st.integers(0, 99),
)
def test_a_read_into_any_part_of_any_page_touches_nothing_else(within, blocks, lba, mdts, seed):
    content = np.random.default_rng(seed).bytes(512 * 100)
    memory = new_memory()
    with FakeDisk({1: content}, Traits(mdts=mdts), seed=seed) as disk:
        queue = queue_on(disk, memory)
        file, _ = queue.open(DISK)
        wanted = came = 512 * blocks
        while wanted:  # in as many commands as it takes
            done = 512 * blocks - wanted
            address = memory.ctypes.data + within + done
            queue.push(Reads(*np.array([[1], [file], [512 * lba + done], [wanted], [address]])))
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
        assert reader.path_taken.startswith("GPU-initiated (3 threads on the CPU), 2 queues of 64 entries, ")
        assert f"disk-served: FAKE DISK, {DISK}, blocks of 512 bytes" in reader.path_taken
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
        assert not read_once(reader_on(disk, memory), DISK, [0], len(content)).failures
        assert memory[: len(content)].tobytes() == content
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
