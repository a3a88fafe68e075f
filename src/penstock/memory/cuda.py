"""A CUDA device through PyTorch, whose allocator and streams the training uses too."""

# torch's own annotations leave much of torch.cuda unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from penstock.contracts import ByteArray, DeviceBytes, Event, Gpu
from penstock.errors import DeviceUnavailable, PinningRefused
from penstock.memory.cuda_shared import SharedMemory, granularity

if TYPE_CHECKING:
    import torch

_HOST_REGISTER_READ_ONLY = 8  # cudaHostRegisterReadOnly, CUDA Runtime API, "Memory Management"


class CudaGpu:
    """A GPU by its name or UUID.

    Args:
        device: ``"cuda"`` (the current one), ``"cuda:1"``, or the UUID of a GPU or MIG instance.

    Raises:
        DeviceUnavailable: there is no such device, or no working driver.
    """

    def __init__(self, device: str) -> None:
        torch = _torch(device)
        self._torch = torch
        self._device = torch.device("cuda", index_of(torch, device))
        self._stream = torch.cuda.Stream(self._device)
        self.name = str(self._device)
        self.uuid = uuid_of(torch, self._device.index)
        self._shared: WeakValueDictionary[int, SharedMemory] = WeakValueDictionary()
        self._loans: deque[tuple[_Event, Callable[[], None]]] = deque()
        self._collects = True

    def pin(self, memory: ByteArray, *, write: bool = False) -> None:
        runtime: Any = self._torch.cuda.cudart()
        flags = 0 if write else _HOST_REGISTER_READ_ONLY  # a trainer's mapping cannot be written to
        with self._torch.cuda.device(self._device):
            status = runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, flags)
        if int(status):
            with suppress(RuntimeError):  # the next launch would report this as an error of its own
                self._torch.ones(1, device=self._device)
            raise PinningRefused(
                f"{self.name} cannot register {memory.nbytes:,} bytes of host memory: "
                f"{runtime.cudaGetErrorString(status)}"
            )

    def unpin(self, memory: ByteArray) -> None:
        with self._torch.cuda.device(self._device):
            self._torch.cuda.cudart().cudaHostUnregister(memory.ctypes.data)

    def empty(self, nbytes: int) -> DeviceBytes:
        with self._torch.cuda.stream(self._stream):
            return self._torch.empty(nbytes, dtype=self._torch.uint8, device=self._device)

    def copy(self, to: DeviceBytes, origin: ByteArray, *, pinned: bool) -> None:
        if pinned:
            source = self._torch.from_numpy(origin)
        else:  # from pageable memory the driver would copy before it returns
            source = self._torch.empty(origin.nbytes, dtype=self._torch.uint8, pin_memory=True)
            source.numpy()[:] = origin
        with self._torch.cuda.stream(self._stream):
            to.copy_(source, non_blocking=True)

    def copy_within(self, to: DeviceBytes, origin: DeviceBytes) -> None:
        with self._torch.cuda.stream(self._stream):
            to.copy_(origin, non_blocking=True)

    def copy_out(self, to: ByteArray, origin: DeviceBytes) -> None:
        with self._torch.cuda.stream(self._stream):
            self._torch.from_numpy(to).copy_(origin, non_blocking=True)

    def share(self, nbytes: int) -> tuple[DeviceBytes, int]:
        self._torch.cuda.init()
        memory = SharedMemory(self._device.index, self._whole(nbytes))
        return self._tensor(memory, nbytes), memory.fd

    def open_shared(self, fd: int, nbytes: int) -> DeviceBytes:
        self._torch.cuda.init()
        return self._tensor(SharedMemory(self._device.index, self._whole(nbytes), fd), nbytes)

    def lend(self, memory: DeviceBytes, offset: int, nbytes: int, ended: Callable[[], None]) -> DeviceBytes:
        self._collects = True
        span = self._shared[memory.data_ptr()].span(offset, nbytes)
        weakref.finalize(span, self._end_loan, ended)
        return self._torch.as_tensor(span, device=self._device)

    def collect(self) -> None:
        while self._loans:
            try:
                event, ended = self._loans.popleft()
            except IndexError:  # another thread collects too
                return
            if not event.passed():
                self._loans.appendleft((event, ended))
                return
            ended()

    def collect_all(self) -> None:
        self._collects = False
        while True:
            try:
                event, ended = self._loans.popleft()
            except IndexError:  # all are collected, here or by another thread
                return
            event.wait()
            ended()

    def _end_loan(self, ended: Callable[[], None]) -> None:
        """A view has died; what its last user launched on it may still run."""
        event = _Event(self._torch, self._torch.cuda.current_stream(self._device))
        self._loans.append((event, ended))
        if not self._collects:
            self.collect_all()

    def _tensor(self, memory: SharedMemory, nbytes: int) -> DeviceBytes:
        tensor = self._torch.as_tensor(memory.span(0, nbytes), device=self._device)
        self._shared[tensor.data_ptr()] = memory
        return tensor

    def _whole(self, nbytes: int) -> int:
        unit = granularity(self._device.index)
        return -(-nbytes // unit) * unit

    def mark(self) -> Event:
        return _Event(self._torch, self._stream)

    def wait_for_copies(self, memory: Sequence[DeviceBytes], mark: Event) -> None:
        assert isinstance(mark, _Event)
        current = self._torch.cuda.current_stream(self._device)
        current.wait_event(mark.event)
        for each in memory:
            each.record_stream(current)  # or the allocator would hand it out again while it is in use

    def wait_for_compute(self, memory: Sequence[DeviceBytes]) -> None:
        self._stream.wait_stream(self._torch.cuda.current_stream(self._device))
        for each in memory:
            each.record_stream(self._stream)

    def holds(self, tensor: Any) -> bool:
        return tensor.device == self._device


def gpu_of(device: str | Gpu | None) -> Gpu | None:
    """The GPU that is meant; None for the host."""
    if device in (None, "cpu", "host"):
        return None
    return CudaGpu(device) if isinstance(device, str) else device


class _Event:
    def __init__(self, torch: Any, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event(blocking=True)  # who waits for it sleeps
        self.event.record(stream)

    def passed(self) -> bool:
        return bool(self.event.query())

    def wait(self) -> None:
        self.event.synchronize()


def _torch(device: str) -> Any:
    try:
        import torch
    except ImportError:
        raise DeviceUnavailable(
            f"device={device!r}: batches on a GPU are torch tensors, and torch is not installed in this process: "
            'pip install "penstock[torch]"'
        ) from None
    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = (
            f"PyTorch {torch.__version__} finds no GPU that works"
            if built
            else "this PyTorch is built without CUDA"
        )
        raise DeviceUnavailable(
            f"device={device!r}: {why}. penstock doctor says what is missing; device=None stays here"
        )
    return torch


def index_of(torch: Any, device: str) -> int:
    """The number in this process of a device that is named by number or by UUID."""
    count = torch.cuda.device_count()
    uuids = [uuid_of(torch, i) for i in range(count)]
    kind, _, number = device.partition(":")
    if kind == "cuda" and not number:
        return int(torch.cuda.current_device())
    if kind == "cuda" and number.isdecimal() and int(number) < count:
        return int(number)
    named = [i for i, uuid in enumerate(uuids) if _digits(uuid) == _digits(device)]
    if named:
        return named[0]
    listed = ", ".join(f"cuda:{i} ({uuid})" for i, uuid in enumerate(uuids))
    raise DeviceUnavailable(f"device={device!r} does not exist here; this process sees {listed}")


def uuid_of(torch: Any, index: int) -> str:
    """As nvidia-smi writes it; torch leaves the prefix out, and CUDA gives an instance of MIG one of its own."""
    properties = torch.cuda.get_device_properties(index)
    return f"{'MIG' if ' MIG ' in properties.name else 'GPU'}-{_digits(str(properties.uuid))}"


def _digits(uuid: str) -> str:
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()
