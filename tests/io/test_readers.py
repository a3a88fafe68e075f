"""Every reader of files: the contract, with storage that behaves and that does not; and memory to read into."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.io.reading import read_at, read_once, stored
from tests.support.contracts import READING, only
from tests.support.no_files import NO_FILES

from penstock.contracts import ByteArray, Reader
from penstock.errors import BadSetting, ReaderUnavailable, ReadFailed
from penstock.io.files import direct_alignment
from penstock.io.open import FILE_MECHANISMS, MECHANISMS, open_reader
from penstock.io.queue import Queue, Reads, Results, ThreadQueue
from penstock.io.reader import QueueReader, host_memory, lies_on_huge_pages
from penstock.io.uring import UringQueue
from penstock.memory.host_ring import WritableHostRing
from penstock.testing.faulty_queue import FaultyQueue
from penstock.testing.reader import FILE_BYTES, MEMORY_BYTES, ReaderContract, extents_of, new_memory, read_all

QUEUES = {
    "posix": lambda memory: ThreadQueue(16, 4, direct=False),
    "direct": lambda memory: ThreadQueue(16, 4, direct=True),
    "uring": lambda memory: UringQueue(16, memory),
}


@pytest.fixture(params=QUEUES)
def mech(request: pytest.FixtureRequest) -> str:
    return request.param


class TestReaders(ReaderContract):
    @pytest.fixture(autouse=True)
    def _of(self, mech: str) -> None:
        self.mech = mech

    def make(self, memory: ByteArray, depth: int) -> Reader:
        return open_reader(self.mech, memory, depth=depth)


@only(*READING)
class TestFaulty(TestReaders):
    """Short reads, EINTR, and results in any order change nothing."""

    def make(self, memory: ByteArray, depth: int) -> Reader:
        queue = QUEUES[self.mech](memory)
        queue.depth = depth
        return QueueReader(FaultyQueue(queue, seed=3, shorts=0.4, repeats=0.2), memory)


def test_a_disk_error_fails_its_extent_alone_with_path_offset_and_errno(mech: str, tmp_path: Path) -> None:
    memory = new_memory()
    path, content = stored(tmp_path, FILE_BYTES)
    queue = FaultyQueue(QUEUES[mech](memory), seed=8, errors=0.2, shorts=0.2)
    offsets = [4096 * i for i in range(70)]
    done = read_once(QueueReader(queue, memory), path, offsets, 4096)
    assert 0 < len(done.failures) == len(queue.failed) < 70
    for tag, offset in enumerate(offsets):
        if (failure := done.failures.get(tag)) is None:
            assert memory[offset : offset + 4096].tobytes() == content[offset : offset + 4096]
        else:
            assert (failure.path, failure.offset, failure.errno) == (path, offset, errno.EIO)
            assert os.strerror(errno.EIO) in str(failure)
            assert f"{offset:,}" in str(failure)


def test_an_error_of_the_kernels_own_is_told(mech: str, tmp_path: Path) -> None:
    """It answers EFAULT where it may not write."""
    path, _ = stored(tmp_path, 4096)
    locked = np.frombuffer(mmap.mmap(-1, MEMORY_BYTES, prot=mmap.PROT_READ), np.uint8)
    done = read_once(QueueReader(QUEUES[mech](locked), locked), path, [0], 4096)
    assert done.failures[0].errno == errno.EFAULT


def test_a_real_io_error_is_told() -> None:
    """The kernel answers EIO where this process has no memory."""
    done = read_once(QueueReader(ThreadQueue(4, 1, direct=False), new_memory()), "/proc/self/mem", [0], 4096)
    assert done.failures[0].errno == errno.EIO


@pytest.mark.parametrize("mech", FILE_MECHANISMS)
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("folder", "it is a directory, no file"),
        ("pipe", "it is a pipe, no file"),
        ("socket", "it is a socket, no file"),
        ("device", "it is a character device, no file"),
        ("no\0file", "no file can have this name"),
        ("", "No such file"),
    ],
)
def test_what_is_no_file_is_refused_at_once_and_the_reader_goes_on(mech, kind, told, tmp_path):
    path = str(tmp_path / kind) if kind else ""
    if kind in NO_FILES:
        NO_FILES[kind](tmp_path / kind)
    with closing(open_reader(mech, new_memory())) as reader:
        with pytest.raises(ReadFailed, match=told) as caught:
            reader.open(path)
        assert (caught.value.errno == errno.EISDIR) == (kind == "folder")
        assert reader.open(stored(tmp_path, 4096)[0]).nbytes == 4096


@pytest.mark.parametrize("setting", ["depth", "threads", "staging_bytes"])
@pytest.mark.parametrize("value", ["8", 2.5, None, 0, -1, 10**30])
def test_a_setting_that_is_no_whole_number_in_range_is_refused(setting: str, value: Any) -> None:
    with pytest.raises(BadSetting, match=f"{setting}={value!r}: it must be a whole number between 1 and"):
        open_reader("posix", new_memory(), **{setting: value})


def test_what_is_no_memory_no_path_or_no_mechanism_is_refused():
    row = np.zeros(8, np.uint8)
    for memory in (row.astype(float), row.reshape(4, 2), row[::2], np.frombuffer(b"constant", np.uint8)):
        with pytest.raises(BadSetting, match="a flat array of uint8"):
            open_reader("posix", memory)
    for path in (None, 5, b"/etc/passwd", Path("/etc/passwd")):
        with closing(open_reader("posix", row)) as reader, pytest.raises(BadSetting, match="path="):
            reader.open(path)  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match=", ".join(MECHANISMS)):
        open_reader("telepathy", row)


@pytest.mark.parametrize("mech", ["direct", "uring"])
def test_a_file_system_without_o_direct_is_named_with_the_way_out(mech: str) -> None:
    no_direct = pytest.raises(ReaderUnavailable, match=r"proc, which has no O_DIRECT.*posix")
    with closing(open_reader(mech, new_memory())) as reader, no_direct:
        reader.open("/proc/self/status")


@pytest.mark.parametrize("piece_bytes", [1 << 20, pytest.param(1 << 30, marks=pytest.mark.soak)])
def test_memory_of_more_than_one_registered_buffer_is_read_across_its_seam(tmp_path, monkeypatch, piece_bytes):
    """The kernel registers at most 1 GiB in one piece."""
    monkeypatch.setattr("penstock.io.uring._BUFFER_BYTES", piece_bytes)
    memory = np.zeros(piece_bytes + (1 << 20), np.uint8)
    memory = memory[-memory.ctypes.data % 4096 :]
    path, content = stored(tmp_path, 16384)
    reader = QueueReader(UringQueue(4, memory), memory)
    seam = piece_bytes - 8192
    assert not read_once(reader, path, [0], 16384, [seam]).failures
    assert memory[seam : seam + 16384].tobytes() == content
    assert "registered memory" in reader.path_taken


def test_more_files_than_the_kernel_registers_can_be_read(tmp_path: Path) -> None:
    memory = new_memory()
    reader = open_reader("uring", memory)
    paths = [tmp_path / str(i) for i in range(1030)]
    for i, path in enumerate(paths):
        path.write_bytes(bytes([i % 251]) * 4096)
    files = [reader.open(str(path)).file for path in paths]
    for i in (0, 1023, 1024, 1029):
        assert not read_all(reader, extents_of(files[i], [0], [4096], [0])).failures
        assert (memory[:4096] == i % 251).all()
    reader.close()


def test_memory_that_cannot_be_registered_is_read_into_and_named(tmp_path: Path) -> None:
    """The kernel does not register pages of a file."""
    backing = tmp_path / "backing"
    backing.write_bytes(bytes(8192))
    path, content = stored(tmp_path, 8192)
    with backing.open("r+b") as file:
        memory = np.frombuffer(mmap.mmap(file.fileno(), 8192), np.uint8)
    reader = open_reader("uring", memory)
    assert not read_once(reader, path, [0], 8192).failures
    assert memory.tobytes() == content
    assert "memory not registered" in reader.path_taken


def test_a_kernel_without_io_uring_is_told_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.io.uring._SETUP", 100_000)  # a system call that no kernel has
    with pytest.raises(ReaderUnavailable, match=r"this kernel has none.*direct"):
        open_reader("uring", new_memory())


@pytest.mark.parametrize("mech", ["direct", "uring"])
def test_what_lies_as_the_disk_wants_it_is_read_without_a_detour(mech: str, tmp_path: Path) -> None:
    """A disk of sectors of 512 bytes takes any multiple of them, which the kernel tells."""
    path, _ = stored(tmp_path, 8192)
    fd = os.open(path, os.O_RDONLY)
    unit = direct_alignment(fd)
    os.close(fd)
    assert unit in (512, 1024, 2048, 4096)
    memory = new_memory()
    queue = Overheard(QUEUES[mech](memory))
    with closing(QueueReader(queue, memory)) as reader:
        read_at(reader, path, [unit], unit, [3 * unit])
        assert queue.alignment == unit
        assert queue.asked == [[unit, unit, memory.ctypes.data + 3 * unit]]
        read_at(reader, path, [unit], unit, [3 * unit + 1])
        assert queue.asked[1] != [unit, unit, memory.ctypes.data + 3 * unit + 1]


def test_buffers_of_detours_are_used_again(tmp_path: Path) -> None:
    path, content = stored(tmp_path, 20_000)
    memory = new_memory()
    queue = Overheard(QUEUES["direct"](memory))
    with closing(QueueReader(queue, memory)) as reader:
        for offset in (1, 4097, 8193):
            assert not read_at(reader, path, [offset], 5000, [0]).failures
            assert memory[:5000].tobytes() == content[offset : offset + 5000]
    assert len({address for _, _, address in queue.asked}) == 1


class Overheard(FaultyQueue):
    """A queue without faults that notes (offset, nbytes, address) of what it is asked."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue, seed=0, disorder=False)
        self.asked: list[list[int]] = []

    def push(self, reads: Reads) -> None:
        self.asked += np.stack([reads.offsets, reads.nbytes, reads.addresses], 1).tolist()
        super().push(reads)


class Exhausted(Overheard):
    """A mechanism that cannot begin what it is first asked."""

    def push(self, reads: Reads) -> None:
        if not self.asked:
            self.asked.append([])
            raise MemoryError("no room for requests")
        super().push(reads)


def test_a_reader_goes_on_after_a_submit_that_failed(tmp_path: Path) -> None:
    path, content = stored(tmp_path, 70_000)
    memory = new_memory()
    reader = QueueReader(Exhausted(QUEUES["direct"](memory)), memory)
    file, _ = reader.open(path)
    at = [4099 * i for i in range(16)]
    with pytest.raises(MemoryError):
        reader.submit(extents_of(file, at, [4000] * 16, at))
    assert len(reader.completed(1).tags) == 0
    assert not read_all(reader, extents_of(file, at, [4000] * 16, at)).failures
    assert all(memory[start : start + 4000].tobytes() == content[start : start + 4000] for start in at)
    reader.close()


def test_where_the_system_gives_no_more_threads_those_that_there_are_read(tmp_path, monkeypatch):
    path, _ = stored(tmp_path, FILE_BYTES)
    reader = open_reader("posix", new_memory(), threads=8)
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name.endswith("3"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert not read_once(reader, path, [4096 * i for i in range(16)], 4096).failures
    assert reader.path_taken == "preadv, page cache, 3 threads"


class Held(FaultyQueue):
    """Reads that do not come before they are let go."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue, seed=0)
        self.waited_for, self.let_go = threading.Event(), threading.Event()

    def pop(self, at_least: int) -> Results:
        self.waited_for.set()
        assert self.let_go.wait(20)
        return super().pop(at_least)


def test_close_waits_for_what_is_under_way(tmp_path: Path) -> None:
    path, content = stored(tmp_path, FILE_BYTES)
    memory = new_memory()
    queue = Held(QUEUES["posix"](memory))
    reader = QueueReader(queue, memory)
    reader.submit(extents_of(reader.open(path).file, [0], [4096], [0]))
    closing = threading.Thread(target=reader.close)
    closing.start()
    assert queue.waited_for.wait(20)
    assert closing.is_alive()
    queue.let_go.set()
    closing.join(20)
    assert not closing.is_alive()
    assert memory[:4096].tobytes() == content[:4096]


HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")


def setting(name: str) -> str:
    """What the system gives, such as "madvise"."""
    path = HUGE_PAGES / name
    return path.read_text().partition("[")[2].partition("]")[0] if path.exists() else "never"


@pytest.mark.skipif(setting("enabled") == "never", reason="this system gives no huge pages")
def test_private_memory_lies_on_huge_pages_and_readers_say_so() -> None:
    memory = host_memory(16 << 20)
    assert not lies_on_huge_pages(memory)
    memory[:] = 1
    assert lies_on_huge_pages(memory)
    with closing(open_reader("posix", memory)) as reader:
        assert reader.path_taken.endswith("huge pages")


def test_memory_on_small_pages_is_not_taken_for_another() -> None:
    mapping = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_NOHUGEPAGE)  # NumPy's own memory may lie on huge pages
    memory = np.frombuffer(mapping, np.uint8)
    memory[:] = 1
    assert not lies_on_huge_pages(memory)
    with closing(open_reader("posix", memory)) as reader:
        assert "huge pages" not in reader.path_taken


def test_a_ring_lies_on_them_where_the_system_gives_them_to_shared_memory() -> None:
    ring = WritableHostRing.create(16 << 20)
    ring.writable(0, 16 << 20)[:] = 1
    given = setting("shmem_enabled") in ("always", "within_size", "advise", "force")
    assert lies_on_huge_pages(ring.readable(0, 16 << 20)) == given
    ring.close()
