"""Reads through NVMe queues: the device's code, run by threads of the CPU, against the emulated controller."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.io.reading import in_slots, read_at, read_once, stored
from tests.support.contracts import READING, only

from penstock.contracts import ByteArray, Opened, Reader
from penstock.errors import ReaderUnavailable
from penstock.io.nvme import queue_memory as layout
from penstock.io.nvme.emulated import EmulatedController
from penstock.io.nvme.queue import GpuQueue, queue_memory
from penstock.io.nvme.queue_memory import QueueMemory
from penstock.io.nvme.threads import HEADER, DeviceThreads, HostThreads, library
from penstock.io.open import open_reader
from penstock.io.queue import Queue, Reads, Results, ThreadQueue
from penstock.io.reader import QueueReader
from penstock.io.uring import UringQueue
from penstock.testing.faulty_queue import FaultyQueue
from penstock.testing.reader import MEMORY_BYTES, ReaderContract, new_memory


def gpu_reader(backend: Queue, memory: ByteArray, *, queues: int, entries: int, threads: int) -> QueueReader:
    between = queue_memory(backend, queues, entries)
    return QueueReader(GpuQueue(EmulatedController(between, backend), HostThreads(between, threads)), memory)


class TestGpu(ReaderContract):
    def make(self, memory: ByteArray, depth: int) -> Reader:
        return open_reader("gpu", memory, depth=depth)


@only(*READING)
class TestGpuOverSmallQueuesAndAFaultyBackend(ReaderContract):
    def make(self, memory: ByteArray, depth: int) -> Reader:
        backend = FaultyQueue(ThreadQueue(depth, 4, direct=False), seed=3, shorts=0.4, repeats=0.2)
        return gpu_reader(backend, memory, queues=3, entries=4, threads=5)


@pytest.mark.parametrize("count", [2_500, pytest.param(50_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("threads", "queues", "entries"), [(1, 2, 64), (2, 2, 8), (8, 4, 16)])
def test_every_byte_of_many_random_reads_is_right_and_every_error_is_told(
    threads, queues, entries, count, tmp_path
):
    """Results in any order, short reads, errors; the queues wrap many times."""
    rng = np.random.default_rng(threads)
    memory = new_memory()
    depth = 64
    backend = FaultyQueue(UringQueue(depth, memory), seed=threads, errors=0.01, shorts=0.1, repeats=0.05)
    reader = gpu_reader(backend, memory, queues=queues, entries=entries, threads=threads)
    sizes = {"one": 512 * 999 + 13, "other": 512 * 2000}
    paths, contents = zip(*(stored(tmp_path, nbytes, name=name) for name, nbytes in sizes.items()), strict=True)
    files = np.array([reader.open(path).file for path in paths])
    which = rng.integers(0, 2, count)
    nbytes = 512 * rng.integers(1, MEMORY_BYTES // depth // 512 + 1, count)
    # Some begin past the end, or before it and go on behind it.
    offsets = 512 * (rng.random(count) * np.array([1005, 2005])[which]).astype(np.int64)
    right, ended, broken = 0, 0, 0
    for tag, came, failure in in_slots(reader, memory, depth, files[which], offsets, nbytes):
        start, end = int(offsets[tag]), int(offsets[tag] + nbytes[tag])
        if failure is None:
            assert came == contents[which[tag]][start:end]
            right += 1
        elif failure.errno == 0:
            assert end > len(contents[which[tag]])
            ended += 1
        else:
            assert (failure.errno, failure.path) == (errno.EIO, paths[which[tag]])
            broken += 1
    reader.close()
    assert right + ended + broken == count
    # Each read that the backend failed ended exactly one extent: nothing was swallowed, nothing made up.
    assert broken == len(backend.failed) > count // 200
    assert ended > 0
    assert right > count // 2


@pytest.mark.whole
@settings(max_examples=examples(10))
@given(
    threads=st.integers(1, 9),
    queues=st.integers(1, 5),
    entries=st.sampled_from([2, 4, 8]),
    depth=st.integers(1, 40),
    seed=st.integers(0, 999),
)
def test_any_shape_reads_what_is_there(threads, queues, entries, depth, seed, tmp_path_factory):
    path, content = stored(tmp_path_factory.mktemp("shape"), 512 * 256, seed)
    memory = new_memory()
    backend = FaultyQueue(ThreadQueue(depth, 2, direct=False), seed, shorts=0.3)
    reader = gpu_reader(backend, memory, queues=queues, entries=entries, threads=threads)
    assert not read_once(reader, path, [512 * i for i in range(256)], 512).failures
    assert memory[: len(content)].tobytes() == content


def test_a_read_larger_than_a_command_comes_in_several(tmp_path: Path) -> None:
    nbytes = 3 * layout.MAX_READ_BYTES + 4096 + 1
    path, content = stored(tmp_path, nbytes)
    memory = np.zeros(nbytes + 4096, np.uint8)
    reader = gpu_reader(ThreadQueue(4, 2, direct=False), memory, queues=1, entries=2, threads=1)
    for to in (0, -memory.ctypes.data % 4096):
        memory[:] = 0
        assert not read_at(reader, path, [0], nbytes, [to]).failures
        assert memory[to : to + nbytes].tobytes() == content
    reader.close()


class Broken:
    """A backend that fails altogether."""

    mech, depth, alignment, path_taken = "broken", 4, 1, "broken"

    def open(self, path: str) -> Opened:
        return Opened(0, 4096)

    def push(self, reads: Reads) -> None:
        raise RuntimeError("the backend has failed")

    def pop(self, at_least: int) -> Results:
        raise AssertionError("nothing was begun")

    def close(self) -> None:
        pass


def test_a_controller_that_dies_is_told_to_whoever_waits() -> None:
    memory = queue_memory(Broken(), 1, 8)
    threads = HostThreads(memory, 1)
    queue = GpuQueue(EmulatedController(memory, Broken()), threads)
    file, _ = queue.open("x")
    queue.push(Reads(*np.array([[0], [file], [0], [4096], [new_memory().ctypes.data]])))
    with pytest.raises(RuntimeError, match="the backend has failed"):
        queue.pop(1)
    queue.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("penstock-")]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")
def test_the_header_compiles_for_gpus(tmp_path: Path) -> None:
    command = ["nvcc", "-x", "cu", "-std=c++17", "-Werror", "all-warnings", "-arch", "sm_90", "-cubin"]
    subprocess.run([*command, HEADER, "-o", tmp_path / "queues.cubin"], check=True, capture_output=True)
    assert b"penstock_serve" in (tmp_path / "queues.cubin").read_bytes()


def test_no_compiler_is_told_with_the_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    reader = open_reader("gpu", new_memory())
    with pytest.raises(ReaderUnavailable, match=r"C\+\+ compiler.*uring"):
        reader.open(str(tmp_path))
    reader.close()
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a driver here")
def test_a_gpu_that_is_not_there_is_told() -> None:
    queues = QueueMemory(2, 8, 8, 512)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ReaderUnavailable, match=r"gpu.*needs"):
        DeviceThreads(queues, 32, 0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_header_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = library()
    when = first.stat().st_mtime_ns
    assert library() == first
    assert first.stat().st_mtime_ns == when
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_a_folder_for_compiled_code_that_cannot_be_written_is_told(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ReaderUnavailable, match="XDG_CACHE_HOME"):
        library()


def test_the_path_says_who_submits_and_who_serves(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    reader = open_reader("gpu", new_memory(), threads=3)
    assert "decided by what is read" in reader.path_taken
    reader.open(str(tmp_path / "file"))
    assert "GPU-initiated (3 threads on the CPU)" in reader.path_taken
    assert "CPU-served: io_uring" in reader.path_taken
    reader.close()


def test_a_processor_that_orders_writes_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(ReaderUnavailable, match="this is aarch64; read with mech='uring'"):
        open_reader("gpu", new_memory())
