"""The launches of a GPU, with a driver that runs kernels in threads of the CPU."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.fakes.nvme_admin import Traits
from tests.fakes.nvme_disk import FakeDisk, FakeModule
from tests.io.reading import read_once, stored

from penstock.errors import ReaderUnavailable
from penstock.io.nvme import threads as device
from penstock.io.nvme.controller import DiskController
from penstock.io.nvme.emulated import EmulatedController
from penstock.io.nvme.queue import GpuQueue, queue_into, queue_memory
from penstock.io.nvme.queue_memory import WORK
from penstock.io.nvme.threads import DeviceThreads, library
from penstock.io.queue import ThreadQueue
from penstock.io.reader import QueueReader
from penstock.testing.faulty_queue import FaultyQueue
from penstock.testing.reader import MEMORY_BYTES, extents_of, new_memory


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


_libc = ctypes.CDLL(None)
_libc.mremap.restype = ctypes.c_void_p
_MREMAP_MAYMOVE = 1


def _seen_again(address: int, nbytes: int) -> int:
    """Another address of the same shared memory (mremap(2): an old size of 0)."""
    return _libc.mremap(ctypes.c_void_p(address), ctypes.c_size_t(0), ctypes.c_size_t(nbytes), _MREMAP_MAYMOVE)


class Stream:
    """Kernels one after the other."""

    def __init__(self) -> None:
        self.worker = ThreadPoolExecutor(1)
        self.last: Future[None] | None = None
        self.idle = False


class FakeDriver:
    """What ``DeviceThreads`` uses of ``cuda.bindings.driver``; kernels of several streams run at the same time."""

    CU_MEMHOSTREGISTER_DEVICEMAP = 2
    CU_MEMHOSTREGISTER_IOMEMORY = 4
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=9, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=0
    )
    CUresult = Status

    def __init__(self, *, broken: bool = False, moved: int = 0) -> None:
        self._serve = ctypes.CDLL(str(library())).penstock_serve
        self._broken, self._moved = broken, moved
        self.held: dict[int, Any] = {}  # by address, what is to be given back: its size, or the memory
        self.registers: dict[int, int] = {}  # where the device sees those that are registered
        self.launches = 0
        self.running: set[threading.Thread] = set()

    def cuDeviceGet(self, device: int) -> Any:  # noqa: N802
        return Status.CUDA_SUCCESS, device

    def cuDeviceGetAttribute(self, attribute: int, gpu: int) -> Any:  # noqa: N802
        return Status.CUDA_SUCCESS, attribute

    def cuMemAlloc(self, nbytes: int) -> Any:  # noqa: N802
        memory = np.full(nbytes + 256, 0xA5, np.uint8)
        address = -(-memory.ctypes.data // 256) * 256
        self.held[address] = memory
        return Status.CUDA_SUCCESS, address

    def cuMemcpyHtoD(self, to: int, origin: int, nbytes: int) -> Any:  # noqa: N802
        ctypes.memmove(to, origin, nbytes)
        return (Status.CUDA_SUCCESS,)

    def cuMemsetD8(self, address: int, value: int, nbytes: int) -> Any:  # noqa: N802
        ctypes.memset(address, value, nbytes)
        return (Status.CUDA_SUCCESS,)

    def cuMemFree(self, address: int) -> Any:  # noqa: N802
        assert not self.running, "a kernel may use it"
        del self.held[address]
        return (Status.CUDA_SUCCESS,)

    def cuMemHostRegister(self, address: int, nbytes: int, flags: int) -> Any:  # noqa: N802
        self.held[address] = nbytes
        if flags & self.CU_MEMHOSTREGISTER_IOMEMORY:
            self.registers[address] = _seen_again(address, nbytes)
        return (Status.CUDA_SUCCESS,)

    def cuMemHostGetDevicePointer(self, address: int, flags: int) -> Any:  # noqa: N802
        return Status.CUDA_SUCCESS, self.registers.get(address, address + self._moved)

    def cuMemHostUnregister(self, address: int) -> Any:  # noqa: N802
        nbytes = self.held.pop(address)
        if address in self.registers:
            _libc.munmap(ctypes.c_void_p(self.registers.pop(address)), ctypes.c_size_t(nbytes))
        return (Status.CUDA_SUCCESS,)

    def cuStreamCreate(self, flags: int) -> Any:  # noqa: N802
        return Status.CUDA_SUCCESS, Stream()

    def cuStreamQuery(self, stream: Stream) -> Any:  # noqa: N802
        if self._broken:
            return (Status.CUDA_ERROR_ILLEGAL_ADDRESS,)
        ready = stream.last is None or stream.last.done()
        return (Status.CUDA_SUCCESS if ready else Status.CUDA_ERROR_NOT_READY,)

    def cuStreamSynchronize(self, stream: Stream) -> Any:  # noqa: N802
        stream.worker.shutdown()
        stream.idle = True
        return (Status.CUDA_SUCCESS,)

    def cuStreamDestroy(self, stream: Stream) -> Any:  # noqa: N802
        assert stream.idle, "a kernel may use what is given back next"
        return (Status.CUDA_SUCCESS,)

    def cuLaunchKernel(self, kernel: Any, *shape_stream_and_parameters: Any) -> Any:  # noqa: N802
        blocks, _, _, threads, _, _, _, stream, parameters, _ = shape_stream_and_parameters
        addresses = (ctypes.c_uint64 * 2).from_address(parameters)
        # A launch copies its parameters.
        work = ctypes.create_string_buffer(ctypes.string_at(addresses[0], WORK.itemsize), WORK.itemsize)
        limit = ctypes.c_uint64.from_address(addresses[1]).value
        self.launches += 1
        if not self._broken:
            stream.last = stream.worker.submit(self._run, work, blocks * threads, limit)
        return (Status.CUDA_SUCCESS,)

    def _run(self, work: Any, threads: int, limit: int) -> None:
        until = ctypes.c_uint64(limit)
        running = [threading.Thread(target=self._serve, args=(work, i, until)) for i in range(threads)]
        self.running.update(running)
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        self.running.difference_update(running)

    def __getattr__(self, name: str) -> Any:
        """What has no effect that anybody could see."""
        return lambda *_: (Status.CUDA_SUCCESS, name)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[FakeDriver]:
    fake = FakeDriver(**getattr(request, "param", {}))
    monkeypatch.setattr(device, "_driver", lambda: fake)
    monkeypatch.setattr(device, "compile_for", lambda architecture: b"")
    yield fake
    assert not fake.held, "given back with the reader"


def reader_of(disk: FakeDisk, memory: Any, *, queues: int, threads: int) -> QueueReader:
    controller = DiskController(FakeModule(disk), 1, depth=64, queues=queues)
    queue = queue_into(memory, controller, threads, SimpleNamespace(name="cuda:0"))  # type: ignore[arg-type]
    return QueueReader(queue, memory, queue.new_buffer)


@pytest.mark.whole
def test_batches_that_are_launched_at_the_same_time_lose_and_repeat_nothing(driver: FakeDriver, tmp_path: Path):
    path, content = stored(tmp_path, MEMORY_BYTES)
    memory = new_memory()
    backend = FaultyQueue(ThreadQueue(64, 4, direct=False), seed=1, errors=0.03, shorts=0.1)
    between = queue_memory(backend, queues=3, entries=8)
    reader = QueueReader(GpuQueue(EmulatedController(between, backend), DeviceThreads(between, 20, 0)), memory)
    assert "GPU-initiated (32 threads on cuda:0)" in reader.path_taken
    at = [4096 * i for i in range(MEMORY_BYTES // 4096)]
    done = read_once(reader, path, at, 1024)
    assert driver.launches > 16
    assert 0 < len(done.failures) == len(backend.failed)
    for tag in set(range(len(at))) - set(done.failures):
        assert memory[at[tag] : at[tag] + 1024].tobytes() == content[at[tag] : at[tag] + 1024]


@pytest.mark.parametrize("stride_log2", [0, 2])
def test_a_disk_is_rung_where_the_device_sees_its_registers(driver: FakeDriver, stride_log2: int) -> None:
    content = np.random.default_rng(2).bytes(MEMORY_BYTES)
    memory = new_memory()
    with FakeDisk({1: content}, Traits(doorbell_stride_log2=stride_log2, mdts=1), {(1, 77): 0x281}) as disk:
        reader = reader_of(disk, memory, queues=3, threads=20)
        assert "GPU-initiated (32 threads on cuda:0), 2 queues of 64 entries, disk-served" in reader.path_taken
        assert len(driver.registers) == 1
        at = [10_000 * i for i in range(100)]
        done = read_once(reader, "/dev/libnvm0", at, 9_999)
        assert not disk.wrongs
        assert disk.bus.count == 0
    assert set(done.failures) == {3}
    for start in at[:3] + at[4:]:
        assert memory[start : start + 9_999].tobytes() == content[start : start + 9_999]


def test_tables_are_given_back_when_no_kernel_reads_them_any_more(driver: FakeDriver) -> None:
    with FakeDisk({1: bytes(MEMORY_BYTES)}) as disk:
        disk.fatal_after = 3
        reader = reader_of(disk, new_memory(), queues=2, threads=32)
        at = [4096 * i for i in range(64)]
        reader.submit(extents_of(reader.open("/dev/libnvm0").file, at, [4096] * 64, at))
        with pytest.raises(ReaderUnavailable, match="has failed"):
            reader.close()
        assert disk.bus.count == 0
        assert not disk.wrongs


@pytest.mark.parametrize("driver", [{"broken": True}], indirect=True)
def test_a_kernel_that_fails_is_told_to_whoever_waits(driver: FakeDriver, tmp_path: Path) -> None:
    path, _ = stored(tmp_path, 4096)
    backend = ThreadQueue(4, 1, direct=False)
    between = queue_memory(backend)
    queue = GpuQueue(EmulatedController(between, backend), DeviceThreads(between, 32, 0))
    reader = QueueReader(queue, new_memory())
    reader.submit(extents_of(reader.open(path).file, [0], [4096], [0]))
    with pytest.raises(ReaderUnavailable, match="ILLEGAL_ADDRESS"):
        reader.completed(1)
    queue.close()


@pytest.mark.parametrize("driver", [{"moved": 4096}], indirect=True)
def test_host_memory_at_other_addresses_on_the_gpu_is_refused(driver: FakeDriver) -> None:
    backend = ThreadQueue(4, 1, direct=False)
    with pytest.raises(ReaderUnavailable, match="other addresses"):
        DeviceThreads(queue_memory(backend), 32, 0)
    backend.close()
