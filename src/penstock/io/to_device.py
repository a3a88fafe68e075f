"""Readers for a GPU: into host memory registered with it, or through host memory into its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from penstock.contracts import ByteArray, Completed, DeviceBytes, Event, Extents, Gpu, Opened, Reader
from penstock.errors import BadSetting, PinningRefused, ReadFailed
from penstock.io.files import direct_aligned
from penstock.io.reader import check, host_memory
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
            self._gpu.copy(
                self._memory[to : to + nbytes], self._staging[start : start + nbytes], pinned=self._reader.pinned
            )
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
