"""Opens readers by the name of their mechanism."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeGuard

import numpy as np

from penstock.basics.sizes import check_one_of, whole_number
from penstock.contracts import ByteArray, Completed, DeviceBytes, Event, Extents, Gpu, Opened, Reader
from penstock.errors import BadSetting, PinningRefused, ReadFailed
from penstock.io.files import direct_aligned
from penstock.io.gds import GdsQueue
from penstock.io.nvme.queue import GpuOfFirstPath
from penstock.io.object_store import ObjectQueue
from penstock.io.queue import ThreadQueue
from penstock.io.reader import QueueReader, check, host_memory
from penstock.io.uring import UringQueue
from penstock.memory.room import Room


class PinnedReader:
    """A reader into host memory that is registered with a GPU, which then copies from it asynchronously.

    Where the system does not allow registering, it reads all the same. It closes the reader that ``make`` makes.
    """

    def __init__(self, gpu: Gpu, memory: ByteArray, make: Callable[[ByteArray], Reader]) -> None:
        self._gpu, self._memory = gpu, memory
        self._refusal = ""
        try:
            gpu.pin(memory)
        except PinningRefused as refused:
            self._refusal = str(refused)
        try:
            self._reader = make(memory)
        except BaseException:
            self._unpin()
            raise
        self.mech, self.depth = self._reader.mech, self._reader.depth
        self.open, self.submit, self.completed = self._reader.open, self._reader.submit, self._reader.completed

    @property
    def pinned(self) -> bool:
        return not self._refusal

    @property
    def path_taken(self) -> str:
        memory = f"memory not pinned ({self._refusal})" if self._refusal else f"memory pinned for {self._gpu.name}"
        return f"{self._reader.path_taken}; {memory}"

    def close(self) -> None:
        try:
            self._reader.close()
        finally:
            self._unpin()

    def _unpin(self) -> None:
        if self.pinned:
            self._gpu.unpin(self._memory)


class DeviceReader:
    """A reader into a GPU's memory, through staging memory on the host from which the GPU copies.

    An extent is done when its copy is; none may be larger than ``staging_bytes``. Copies begin when the caller
    asks for completed extents. The reader into the staging memory, which ``make`` makes, is closed with this one.
    """

    def __init__(
        self, gpu: Gpu, memory: DeviceBytes, staging_bytes: int, make: Callable[[ByteArray], Reader]
    ) -> None:
        self._gpu, self._memory = gpu, memory
        self._room = Room(direct_aligned(staging_bytes))
        self._staging = host_memory(self._room.capacity_bytes)
        self._reader = PinnedReader(gpu, self._staging, make)
        self.mech, self.depth = self._reader.mech, self._reader.depth
        self._begun = 0
        self._staged: dict[int, _Staged] = {}
        self._copying: deque[tuple[Event, list[int]]] = deque()

    @property
    def path_taken(self) -> str:
        return f"{self._reader.path_taken}; copied from there to {self._gpu.name}"

    def open(self, path: str) -> Opened:
        return self._reader.open(path)

    def submit(self, extents: Extents) -> int:
        check(extents, self._memory.nbytes)
        room_bytes = self._room.capacity_bytes
        if len(extents.nbytes) and extents.nbytes.max() > room_bytes:
            raise BadSetting(
                f"an extent of {extents.nbytes.max():,} bytes does not fit the {room_bytes:,} bytes of "
                "staging memory; give a larger staging_bytes, or smaller extents"
            )
        starts: list[int] = []
        for nbytes in extents.nbytes[: self.depth - len(self._staged)].tolist():
            if (start := self._room.reserve(direct_aligned(nbytes))) is None:
                break
            starts.append(start)
        if not starts:
            return 0
        tags, files, offsets, nbytes, to = extents.part(0, len(starts))
        numbers = self._begun + np.arange(len(starts))
        self._begun += len(starts)
        for number, *staged in zip(
            numbers.tolist(), tags.tolist(), starts, nbytes.tolist(), to.tolist(), strict=True
        ):
            self._staged[number] = _Staged(*staged)
        try:
            taken = self._reader.submit(Extents(numbers, files, offsets, nbytes, np.array(starts, np.int64)))
        except BaseException:
            for number in numbers.tolist():
                self._free(number)
            raise
        assert taken == len(starts)
        return taken

    def completed(self, at_least: int = 1) -> Completed:
        done: list[int] = []
        failures: dict[int, ReadFailed] = {}
        wanted = min(at_least, len(self._staged))
        while True:
            while self._copying and self._copying[0][0].passed():
                done += [self._free(number) for number in self._copying.popleft()[1]]
            if len(done) >= wanted:
                return Completed(np.array(done, np.int64), failures)
            missing = wanted - len(done) - sum(len(numbers) for _, numbers in self._copying)
            if missing > 0:
                self._copy(self._reader.completed(missing), done, failures)
            else:
                self._copying[0][0].wait()

    def close(self) -> None:
        try:
            self.completed(self.depth)
        finally:
            self._reader.close()

    def _copy(self, came: Completed, done: list[int], failures: dict[int, ReadFailed]) -> None:
        copied: list[int] = []
        for number in came.tags.tolist():
            if number in came.failures:
                done.append(self._free(number))
                failures[done[-1]] = came.failures[number]
                continue
            _, start, nbytes, to = self._staged[number]
            origin = self._staging[start : start + nbytes]
            with self._gpu.beside():
                self._gpu.copy(self._memory[to : to + nbytes], origin, pinned=self._reader.pinned)
            copied.append(number)
        if copied:
            self._copying.append((self._gpu.mark(), copied))

    def _free(self, number: int) -> int:
        staged = self._staged.pop(number)
        self._room.release(staged.start)
        return staged.tag


class _Staged(NamedTuple):
    """An extent on its way: the caller's tag, its place in staging memory, and its place on the device."""

    tag: int
    start: int
    nbytes: int
    to: int


MECHANISMS = ("posix", "direct", "uring", "object", "gds", "gpu")
FILE_MECHANISMS = ("posix", "direct", "uring", "gpu")
"""Mechanisms that read files into host memory."""

MAX_DEPTH = 4096
MAX_THREADS = 1024
STAGING_BYTES = 64 << 20


def open_reader(
    mech: str,  # one of ``MECHANISMS``
    memory: ByteArray | DeviceBytes,  # where bytes go while the reader lives: a host array, or a tensor on ``gpu``
    *,
    depth: int = 128,  # extents under way at once, 1 to 4096
    threads: int = 8,  # threads that wait for the kernel, or submit commands, 1 to 1024, if the mechanism has any
    gpu: Gpu | None = None,
    staging_bytes: int = STAGING_BYTES,  # host memory on the way to the device, if the mechanism needs that
) -> Reader:
    """Open a reader into this memory.

    ``gpu`` is that of the memory, or the one with which host memory is registered so that copies from it are
    asynchronous. Under ``"gpu"`` its threads submit; without it, threads of the CPU do.
    """
    check_one_of("mech", mech, MECHANISMS)
    depth = whole_number("depth", depth, 1, MAX_DEPTH)
    threads = whole_number("threads", threads, 1, MAX_THREADS)
    staging_bytes = whole_number("staging_bytes", staging_bytes, 1)
    if _on_host(memory) and not (memory.dtype == np.uint8 and memory.ndim == 1 and memory.flags.carray):
        raise BadSetting("memory of the host is one row of bytes that may be written: a flat array of uint8")
    if mech == "gds":
        if _on_host(memory):
            raise BadSetting('mech="gds" reads into a GPU\'s memory, this is the host\'s; read with mech="direct"')
        return QueueReader(GdsQueue(depth, min(threads, depth), memory), memory)
    make = partial(_into_host, mech, depth, threads, gpu)
    if _on_host(memory):
        return make(memory) if gpu is None else PinnedReader(gpu, memory, make)
    if gpu is None:
        raise BadSetting("memory that is not the host's is reached through its GPU: open_reader(..., gpu=...)")
    return DeviceReader(gpu, memory, staging_bytes, make)


def _on_host(memory: ByteArray | DeviceBytes) -> TypeGuard[ByteArray]:
    return isinstance(memory, np.ndarray)


def _into_host(mech: str, depth: int, threads: int, gpu: Gpu | None, memory: ByteArray) -> Reader:
    if mech == "uring":
        return QueueReader(UringQueue(depth, memory), memory)
    if mech == "object":
        return QueueReader(ObjectQueue(depth), memory)
    if mech == "gpu":
        queue = GpuOfFirstPath(depth, threads, gpu, memory)
        return QueueReader(queue, memory, queue.new_buffer)
    return QueueReader(ThreadQueue(depth, min(threads, depth), direct=mech == "direct"), memory)
