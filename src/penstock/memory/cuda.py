"""A CUDA device through PyTorch, whose allocator and streams the trainer uses too."""

# torch's own annotations leave much of torch.cuda unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from penstock.basics.terminal import say_once
from penstock.contracts import ByteArray, DeviceBytes, Event, Gpu, Ids
from penstock.errors import DeviceUnavailable, PinningRefused
from penstock.linux.when_gone import in_python, when_gone
from penstock.memory.cuda_batches import BatchCopies
from penstock.memory.cuda_shared import SharedMemory, capture_mode, granularity, unmap_dead

if TYPE_CHECKING:
    import torch

_LONG_RUN_BYTES = 4 << 10
"""Rows of a GPU's ring are copied run by run where these are this long: their numbers could take as much room."""
BUFFER_BYTES = 32 << 20
"""Largest pinned buffer for memory that is not pinned: a power of two, as torch allocates."""


class CudaGpu:
    """A GPU by its name (``"cuda:1"``; ``"cuda"`` is the current one), or by the UUID of a GPU or MIG instance.

    While the calling thread captures a CUDA graph, loans that end wait for a later call, and nothing
    is unmapped.
    """

    def __init__(self, device: str) -> None:
        torch = _torch(device)
        self._torch = torch
        self._device = torch.device("cuda", index_of(torch, device))
        self._stream = torch.cuda.Stream(self._device)
        self._batches = BatchCopies()
        self._events = _Events()
        self.name = str(self._device)
        self.uuid = uuid_of(torch, self._device.index)
        self._shared: WeakValueDictionary[int, SharedMemory] = WeakValueDictionary()
        self._loans: deque[_Loan] = deque()
        self._pid = os.getpid()
        self._collects = True

    def pin(self, memory: ByteArray) -> None:
        runtime: Any = self._torch.cuda.cudart()
        with self._torch.cuda.device(self._device):
            status = runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)
        if int(status):
            with suppress(RuntimeError):  # clears the error, which the next launch would report
                self._torch.ones(1, device=self._device)
            raise PinningRefused(
                f"{self.name} cannot register {memory.nbytes:,} bytes of host memory: "
                f"{runtime.cudaGetErrorString(status)}"
            )

    def unpin(self, memory: ByteArray) -> None:
        with self._torch.cuda.device(self._device):
            self._torch.cuda.cudart().cudaHostUnregister(memory.ctypes.data)

    def beside(self) -> AbstractContextManager[object]:
        return self._torch.cuda.stream(self._stream)

    def current(self) -> Any:
        return self._torch.cuda.current_stream(self._device)

    def follow(self, stream: Any, memory: Sequence[DeviceBytes]) -> None:
        self.wait_for_copies(memory, self._point(stream))

    def captures(self) -> bool:
        return bool(self._torch.cuda.is_current_stream_capturing())

    def empty(self, nbytes: int) -> DeviceBytes:
        return self._torch.empty(nbytes, dtype=self._torch.uint8, device=self._device)

    def copy(self, to: DeviceBytes, origin: ByteArray, *, pinned: bool) -> None:
        if pinned:
            to.copy_(self._torch.from_numpy(origin), non_blocking=True)
            return
        for start in range(0, origin.nbytes, BUFFER_BYTES):
            part = origin[start : start + BUFFER_BYTES]
            # From pageable memory the driver would copy before it returns.
            buffer = self._torch.empty(part.nbytes, dtype=self._torch.uint8, pin_memory=True)
            buffer.numpy()[:] = part
            to[start : start + BUFFER_BYTES].copy_(buffer, non_blocking=True)

    def copy_within(self, to: DeviceBytes, origin: DeviceBytes) -> None:
        to.copy_(origin, non_blocking=True)

    def gather(self, to: DeviceBytes, origin: Any, rows: Ids, row_bytes: int, *, pinned: bool) -> None:
        first = np.flatnonzero(np.diff(rows, prepend=rows[0] - 2) != 1)  # where runs of rows begin
        on_host = isinstance(origin, np.ndarray)
        if not on_host and to.nbytes < _LONG_RUN_BYTES * len(first):
            words = self._torch.int64 if row_bytes % 8 == 0 else self._torch.uint8
            # From memory that is not pinned, the copy would wait for what was launched before.
            numbers = self._torch.from_numpy(rows).pin_memory().to(self._device, non_blocking=True)
            seen, taken = (each.view(words).view(-1, row_bytes // words.itemsize) for each in (origin, to))
            self._torch.index_select(seen, 0, numbers, out=taken)
            return
        starts, sizes = rows[first] * row_bytes, np.diff(first, append=len(rows)) * row_bytes
        if on_host and pinned:
            stream = self.current().cuda_stream
            if self._batches.begin(stream, to.data_ptr(), origin.ctypes.data, starts, sizes):
                return
        began = 0
        for start, nbytes in zip(starts.tolist(), sizes.tolist(), strict=True):
            part, run = to[began : began + nbytes], origin[start : start + nbytes]
            if on_host:
                self.copy(part, run, pinned=pinned)
            else:
                self.copy_within(part, run)
            began += nbytes

    def copy_out(self, to: ByteArray, origin: DeviceBytes) -> None:
        self._torch.from_numpy(to).copy_(origin, non_blocking=True)

    def share(self, nbytes: int) -> tuple[DeviceBytes, int]:
        self._torch.cuda.init()
        try:
            memory = SharedMemory(self._torch, self._device.index, self._whole(nbytes))
        except DeviceUnavailable as refused:
            raise DeviceUnavailable(
                f'{refused}. memory="host" asks nothing of the GPU: trainers with device= copy from there'
            ) from None
        return self._tensor(memory, nbytes), memory.fd

    def open_shared(self, fd: int, nbytes: int) -> DeviceBytes:
        self._torch.cuda.init()
        memory = SharedMemory(self._torch, self._device.index, self._whole(nbytes), fd)
        return self._tensor(memory, nbytes)

    def lend(self, memory: DeviceBytes, offset: int, nbytes: int, ended: Callable[[], None]) -> DeviceBytes:
        self._collects = True
        shared = self._shared[memory.data_ptr()]
        span = shared.span(offset, nbytes)
        when_gone(span, in_python(partial(self._end_loan, _Loan(shared, ended))))
        return self._torch.as_tensor(span, device=self._device)

    def collect(self, *, wait: bool = False) -> bool:
        while self._loans and not self.captures():
            try:
                loan = self._loans[0]
            except IndexError:  # another thread collects, too
                break
            loan.event = event = loan.event or self.here()
            if wait:
                event.wait()
            elif not event.passed():
                break
            loan.ended()
            with suppress(ValueError):
                self._loans.remove(loan)
        unmap_dead(self._torch)
        return not self._loans

    def collect_all(self) -> None:
        self._collects = False
        self.collect(wait=True)

    def _end_loan(self, loan: _Loan) -> None:
        """A view has died; what its last user launched on it may still run."""
        if os.getpid() != self._pid:  # in a forked child, which must not call CUDA
            return
        loan.event = None if self.captures() else self.here()
        self._loans.append(loan)
        if not self._collects:
            self.collect_all()

    def _tensor(self, memory: SharedMemory, nbytes: int) -> DeviceBytes:
        tensor = self._torch.as_tensor(memory.span(0, nbytes), device=self._device)
        if tensor.data_ptr() != memory.address:
            raise DeviceUnavailable(
                f"the memory is another GPU's, and PyTorch {self._torch.__version__} would read a copy of it "
                f"on {self.name}, which nobody writes"
            )
        self._shared[tensor.data_ptr()] = memory
        return tensor

    def _whole(self, nbytes: int) -> int:
        unit = granularity(self._torch, self._device.index)
        return -(-nbytes // unit) * unit

    def mark(self) -> Event:
        return self._point(self._stream)

    def here(self) -> _Event:
        return self._point(self._torch.cuda.current_stream(self._device))

    def _point(self, stream: torch.cuda.Stream) -> _Event:
        try:
            event = self._events.passed.pop()
        except IndexError:
            event = self._torch.cuda.Event(blocking=True)  # waiting threads sleep
        event.record(stream)
        return _Event(event, stream, self._events)

    def synchronize(self) -> None:
        self.mark().wait()

    def wait_for_copies(self, memory: Sequence[DeviceBytes], mark: Event) -> None:
        assert isinstance(mark, _Event)
        current = self._torch.cuda.current_stream(self._device)
        if mark.event is not None:
            current.wait_event(mark.event)
        for each in memory:
            each.record_stream(current)  # else the allocator would reuse it while it is in use

    def wait_for_compute(self, memory: Sequence[DeviceBytes]) -> None:
        self._stream.wait_stream(self._torch.cuda.current_stream(self._device))
        for each in memory:
            each.record_stream(self._stream)

    def holds(self, tensor: Any) -> bool:
        return tensor.device == self._device


def gpu_of(device: str | Gpu | None) -> Gpu | None:
    """Return the GPU that ``device`` names; None for the host."""
    if is_host(device):
        return None
    return CudaGpu(device) if isinstance(device, str) else device


def of_rank(device: str | Gpu | None) -> str | Gpu | None:
    """Return the GPU of this rank of ``torchrun`` for ``"cuda"`` where the script has yet to choose one."""
    rank = os.environ.get("LOCAL_RANK", "")
    if device != "cuda" or not rank.isdecimal():
        return device
    torch = _torch("cuda")
    if torch.cuda.current_device() or not 0 < int(rank) < torch.cuda.device_count():
        return device
    say_once(
        f'device="cuda" is cuda:{rank} here, as LOCAL_RANK={rank} and no GPU has been chosen yet: '
        f'torch.cuda.set_device({rank}) chooses it, device="cuda:0" the first'
    )
    return f"cuda:{rank}"


def is_host(device: str | Gpu | None) -> bool:
    """Return whether ``device`` names the host's memory."""
    return device in (None, "cpu", "cpu:0", "host")  # torch's name of a rank's processor has a number


class _Event:
    """A point on a stream; that of a loan is of interest to several threads."""

    event: Any = None  # none once it has passed

    def __init__(self, event: Any, stream: Any, events: _Events) -> None:
        self.event = event
        self.stream = stream
        self._events = events

    def passed(self) -> bool:
        event = self.event
        if event is None:
            return True
        if not self._events.of_no_capture(event.query):
            return False
        self._give_back()
        return True

    def wait(self) -> None:
        event = self.event
        if event is not None:
            self._events.of_no_capture(event.synchronize)
            self._give_back()

    def _give_back(self) -> None:
        if (event := vars(self).pop("event", None)) is not None:  # else another thread has
            self._events.passed.append(event)


class _Events:
    """The events of a GPU, and how they are asked for."""

    def __init__(self) -> None:
        self.passed: deque[Any] = deque()
        """Events to be recorded again: to make one takes as long as to copy a batch."""
        self._mode: Any = capture_mode()

    def of_no_capture(self, ask: Callable[[], Any]) -> Any:
        """Ask an event, which would break a graph that another thread captures.

        ``cudaStreamCaptureModeGlobal``, torch's default, forbids that to all threads that are not relaxed.
        """
        if self._mode is None:
            return ask()
        exchange, relaxed = self._mode
        _, before = exchange(relaxed)
        try:
            return ask()
        finally:
            exchange(before)


@dataclass(eq=False)
class _Loan:
    """A loan of mapped memory, and the end of what may still run on it."""

    memory: SharedMemory  # memory that stays mapped until the event has passed
    ended: Callable[[], None]  # called at its end
    event: _Event | None = None  # event after the last launch on it; None while it cannot be recorded


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
    """Return this process's index of a device named by number or UUID."""
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
    """Return a device's UUID as nvidia-smi writes it: torch leaves out its prefix, ``GPU`` or ``MIG``."""
    properties = torch.cuda.get_device_properties(index)
    return f"{'MIG' if ' MIG ' in properties.name else 'GPU'}-{_digits(str(properties.uuid))}"


def _digits(uuid: str) -> str:
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()
