"""A CUDA that is none, under ``CudaGpu``: streams that run late, memory that can be unmapped too early.

Structures and enumerations are those of cuda-bindings and torch themselves; what would call a driver is made
up here. Device memory is host memory, and each refusal is one that a real driver was seen to make.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cuda.bindings import driver
from tests.fakes.gpu import pages_of

from penstock.memory import cuda, cuda_batches, cuda_shared

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MAP_FIXED = 0x10
_OK, _FULL = driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
PAGE = 2 << 20
POISON = 0xDB


class Status(IntEnum):
    """Of the CUDA runtime."""

    SUCCESS = 0
    INVALID_VALUE = 1
    NOT_SUPPORTED = 801


class Stream:
    """Work in order, carried out when somebody waits for it."""

    def __init__(self, calls: Counter[str], number: int = 0) -> None:
        self.cuda_stream = number  # 0 is the default one
        self.work: list[Callable[[], None]] = []
        self.done = 0
        self.calls = calls

    def run(self, upto: int | None = None) -> None:
        while self.done < (len(self.work) if upto is None else upto):
            self.done += 1
            self.work[self.done - 1]()

    def wait_event(self, event: Event) -> None:
        self.calls["waits in streams"] += 1
        self.work.append(partial(event.stream.run, event.upto))

    def wait_stream(self, other: Stream) -> None:
        self.calls["waits in streams"] += 1
        upto = len(other.work)
        self.work.append(lambda: other.run(upto))


class Computing(Stream):
    """The process's own: what is computed on it needs what it waits for at once, only ``launch`` comes late."""

    def wait_event(self, event: Event) -> None:
        self.calls["waits in streams"] += 1
        event.stream.run(event.upto)


class Event:
    def __init__(self, cuda: FakeCuda, *, blocking: bool) -> None:
        assert blocking
        self._cuda, self._calls = cuda, cuda.calls
        self._calls["new events"] += 1

    def record(self, stream: Stream) -> None:
        if stream is self._cuda.computing:
            self._cuda.not_captured("a record")
        self._calls["records"] += 1
        self.stream, self.upto = stream, len(stream.work)

    def query(self) -> bool:
        self._cuda.not_unsafe("a query")
        self._calls["queries"] += 1
        return self.stream.done >= self.upto

    def synchronize(self) -> None:
        self._cuda.not_unsafe("a wait")
        self._calls["sleeps"] += 1
        self.stream.run(self.upto)


class OnDevice(torch.Tensor):
    """A tensor that says that it lies on the GPU, and to and from which copies are late."""

    cuda_: FakeCuda

    @property
    def device(self) -> Any:  # type: ignore[override]
        return torch.device("cuda", 0)

    def record_stream(self, _: Any) -> None:
        self.cuda_.calls["recorded streams"] += 1

    def pin_memory(self, device: Any = None) -> Any:
        return self.as_subclass(torch.Tensor).clone().as_subclass(Pinned)

    def copy_(self, source: Any, non_blocking: bool = False) -> Any:
        to, origin = self.as_subclass(torch.Tensor), source.as_subclass(torch.Tensor)
        to.fill_(POISON)
        self.cuda_.stream_now.work.append(lambda: to.copy_(origin))
        return self


class Pinned(torch.Tensor):
    """A tensor in pinned memory."""

    def to(self, *_: Any, non_blocking: bool) -> Any:
        assert non_blocking, "the process would wait for what it has launched"
        there = torch.full_like(self.as_subclass(torch.Tensor), -1).as_subclass(OnDevice)
        OnDevice.cuda_.stream_now.work.append(lambda: torch.Tensor.copy_(there.as_subclass(torch.Tensor), self))
        return there


class FakeCuda:
    """One GPU, or two of which the second holds what others share.

    Args:
        free_bytes: Of the GPU, for rings.
        cached_bytes: Of those, what torch's allocator keeps.
        copies_foreign: ``torch.as_tensor`` copies, as of old where memory is another GPU's.
        bindings: Version of cuda-bindings.
    """

    def __init__(
        self,
        free_bytes: int = 1 << 30,
        *,
        cached_bytes: int = 0,
        copies_foreign: bool = False,
        bindings: tuple[int, int] = (13, 5),
    ) -> None:
        self.bindings = bindings
        self.free_bytes, self.cached_bytes, self.copies_foreign = free_bytes, cached_bytes, copies_foreign
        self.faults: list[str] = []  # mappings that went while work that was launched before could still read them
        self.capturing = False  # this thread captures a graph; what must not be called then is a fault too
        self.captured_elsewhere = False  # another thread does, in the global mode
        self.mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL  # of this thread
        self.calls: Counter[str] = Counter()
        self.computing = Computing(self.calls)
        self.stream_now: Stream = self.computing
        self.streams: list[Stream] = [self.computing]
        self.mapped: dict[int, int] = {}
        self.registered: list[tuple[int, int, int]] = []
        self.largest_pinned_bytes = 0
        self.driver = Driver(self)
        self.torch: Any = Torch(self)

    def launch(self) -> None:
        """A kernel that runs until somebody waits for it."""
        self.computing.work.append(lambda: None)

    @property
    def busy(self) -> bool:
        return any(stream.done < len(stream.work) for stream in self.streams)

    def synchronize(self, device: Any = None) -> None:
        self.not_captured("synchronize")
        for stream in self.streams:
            stream.run()

    def not_unsafe(self, what: str) -> None:
        is_captured = self.captured_elsewhere or self.capturing
        if is_captured and self.mode != driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED:
            self.faults.append(f"{what} breaks the graph that is captured")

    def not_captured(self, what: str) -> None:
        if self.capturing:
            self.faults.append(f"{what} while a graph is captured")


class Torch:
    """What ``CudaGpu`` uses of torch."""

    uint8, int64, device, __version__ = torch.uint8, torch.int64, torch.device, "2.11"

    def __init__(self, cuda: FakeCuda) -> None:
        self._fake = cuda

        def stream(device: Any = None) -> Stream:
            cuda.streams.append(Stream(cuda.calls, len(cuda.streams)))
            return cuda.streams[-1]

        def event(*, blocking: bool) -> Event:
            cuda.not_captured("an event")
            return Event(cuda, blocking=blocking)

        def register(address: int, nbytes: int, flags: int) -> Status:
            if flags & 8:  # cudaDevAttrHostRegisterReadOnlySupported is 0 on some machines
                return Status.NOT_SUPPORTED
            memory = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
            if not all(page.writable for page in pages_of(memory)):
                return Status.INVALID_VALUE
            cuda.registered.append((address, nbytes, flags))
            return Status.SUCCESS

        def unregister(address: int) -> None:
            cuda.registered = [span for span in cuda.registered if span[0] != address]

        def empty_cache() -> None:
            cuda.free_bytes += cuda.cached_bytes
            cuda.cached_bytes = 0

        @contextmanager
        def on(stream: Stream) -> Iterator[None]:
            cuda.calls["contexts"] += 1
            before, cuda.stream_now = cuda.stream_now, stream
            try:
                yield
            finally:
                cuda.stream_now = before

        @contextmanager
        def nothing(_: Any) -> Iterator[None]:
            yield

        self.cuda = SimpleNamespace(
            Stream=stream,
            Event=event,
            stream=on,
            device=nothing,
            init=lambda: None,
            current_stream=lambda _: cuda.stream_now,
            current_device=lambda: 0,
            device_count=lambda: 1,
            get_device_properties=lambda _: SimpleNamespace(name="NVIDIA H200", uuid="00000000-fake"),
            is_current_stream_capturing=lambda: cuda.capturing,
            synchronize=cuda.synchronize,
            empty_cache=empty_cache,
            mem_get_info=lambda _: (cuda.free_bytes, 1 << 40),
            cudart=lambda: SimpleNamespace(
                cudaHostRegister=register, cudaHostUnregister=unregister, cudaGetErrorString=lambda s: s.name
            ),
        )

    def _there(self, tensor: torch.Tensor) -> OnDevice:
        there = tensor.as_subclass(OnDevice)
        OnDevice.cuda_ = self._fake
        return there

    def empty(self, nbytes: int, *, dtype: Any, device: Any = None, pin_memory: bool = False) -> Any:
        if pin_memory:
            self._fake.largest_pinned_bytes = max(self._fake.largest_pinned_bytes, nbytes)
            return torch.empty(nbytes, dtype=dtype)
        return self._there(torch.full((nbytes,), POISON, dtype=dtype))

    def ones(self, n: int, device: Any) -> Any:
        return self._there(torch.ones(n))

    def from_numpy(self, array: Any) -> Any:
        return self._there(torch.from_numpy(array))

    def index_select(self, origin: Any, dim: int, index: Any, *, out: Any) -> None:
        from_, numbers, to = (each.as_subclass(torch.Tensor) for each in (origin, index, out))
        self._fake.calls["kernels"] += 1
        assert to.data_ptr() == out.data_ptr() and to.shape == (len(numbers), *from_.shape[1:])
        to.fill_(-1 if to.dtype == torch.int64 else POISON)
        self._fake.stream_now.work.append(lambda: to.copy_(from_[numbers]))

    def as_tensor(self, span: Any, device: Any) -> Any:
        of_numpy = np.asarray(_Host(span))
        return self._there(torch.from_numpy(of_numpy.copy() if self._fake.copies_foreign else of_numpy))


class _Host:
    """The CUDA Array Interface as NumPy's, which keeps what gave it."""

    def __init__(self, span: Any) -> None:
        self.span = span
        self.__array_interface__ = span.__cuda_array_interface__


class Driver:
    """What ``SharedMemory`` calls of the driver; memory is a memfd."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda

    def __getattr__(self, name: str) -> Any:
        assert not name.startswith("cu"), f"{name} would call the driver"
        return getattr(driver, name)

    def cuMemGetAllocationGranularity(self, properties: Any, _: Any) -> Any:  # noqa: N802
        assert properties.location.id == 0
        return _OK, PAGE

    def cuMemCreate(self, nbytes: int, properties: Any, _: int) -> Any:  # noqa: N802
        if nbytes > self._cuda.free_bytes - self._cuda.cached_bytes:
            return _FULL, None
        fd = os.memfd_create("fake GPU memory")
        os.ftruncate(fd, nbytes)
        return _OK, fd

    def cuMemImportFromShareableHandle(self, fd: int, _: Any) -> Any:  # noqa: N802
        return _OK, os.dup(fd)

    def cuMemExportToShareableHandle(self, handle: int, *_: Any) -> Any:  # noqa: N802
        return _OK, os.dup(handle)

    def cuMemRelease(self, handle: int) -> Any:  # noqa: N802
        os.close(handle)
        return (_OK,)

    def cuMemAddressReserve(self, nbytes: int, *_: int) -> Any:  # noqa: N802
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        return _OK, driver.CUdeviceptr(_libc.mmap(None, nbytes, 0, flags, -1, 0))

    def cuMemMap(self, address: Any, nbytes: int, _: int, handle: int, __: int) -> Any:  # noqa: N802
        _libc.mmap(int(address), nbytes, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, handle, 0)
        self._cuda.mapped[int(address)] = nbytes
        return (_OK,)

    def cuMemSetAccess(self, address: Any, nbytes: int, access: Any, _: int) -> Any:  # noqa: N802
        write = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        writes = mmap.PROT_WRITE if access[0].flags == write else 0
        _libc.mprotect(int(address), nbytes, mmap.PROT_READ | writes)
        return (_OK,)

    def cuMemUnmap(self, address: Any, nbytes: int) -> Any:  # noqa: N802
        if self._cuda.busy:
            self._cuda.faults.append("illegal address: unmapped under a kernel")
        del self._cuda.mapped[int(address)]
        _libc.mmap(int(address), nbytes, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED, -1, 0)
        return (_OK,)

    def cuMemcpyBatchAsync(  # noqa: N802
        self, to: Any, origin: Any, sizes: Any, count: int, attributes: Any, first: Any, kinds: int, stream: int
    ) -> Any:
        if self._cuda.bindings < (12, 8):
            raise RuntimeError('Function "cuMemcpyBatchAsync" not found')
        assert stream and stream == self._cuda.stream_now.cuda_stream
        assert (len(to), len(origin), len(sizes), first, kinds) == (count, count, count, [0], 1)
        in_order = driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
        assert attributes[0].srcAccessOrder == in_order
        for there, here, nbytes in zip(to, origin, sizes, strict=True):
            move = partial(ctypes.memmove, int(there), int(here), nbytes)
            self._cuda.stream_now.work.append(lambda move=move: move() and None)
        self._cuda.calls["batches of copies"] += 1
        return (_OK, 2**64 - 1) if self._cuda.bindings < (13, 0) else (_OK,)

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> Any:  # noqa: N802
        before, self._cuda.mode = self._cuda.mode, mode
        return _OK, before

    def cuMemAddressFree(self, address: Any, nbytes: int) -> Any:  # noqa: N802
        _libc.munmap(int(address), nbytes)
        return (_OK,)


def installed(monkeypatch: pytest.MonkeyPatch, fake: FakeCuda) -> FakeCuda:
    """Have ``CudaGpu`` and what it uses find this CUDA."""
    monkeypatch.setattr(cuda, "_torch", lambda _: fake.torch)
    for module in (cuda_batches, cuda_shared):
        monkeypatch.setattr(module, "driver_calls", lambda: fake.driver)
    return fake
