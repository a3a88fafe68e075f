"""A ring in a GPU's memory, which every training on that GPU maps, and how blocks come to it."""

from __future__ import annotations

import os
from collections.abc import Callable

from penstock.contracts import ByteArray, DeviceBytes, Gpu
from penstock.errors import PinningRefused
from penstock.memory.host import HostRing
from penstock.memory.room import Room
from penstock.memory.slots import Slot


class Staging:
    """Host memory that a feeder's GPU copies from by itself; a loader's workers write there.

    Args:
        gpu: Registers it, where the system allows that.
        capacity_bytes: Its size.
    """

    def __init__(self, gpu: Gpu, capacity_bytes: int) -> None:
        self.ring = HostRing.create(capacity_bytes)
        self.capacity_bytes = capacity_bytes
        self._gpu = gpu
        self._room = Room(capacity_bytes)
        self._memory = self.ring.readable(0, capacity_bytes)
        try:
            gpu.pin(self._memory)
            self.pinned = True
        except PinningRefused:
            self.pinned = False

    def slot(self, nbytes: int) -> Slot | None:
        """Room for a block to come, or None while there is none."""
        offset = self._room.reserve(nbytes)
        return None if offset is None else Slot(offset, nbytes)

    def release_slot(self, slot: Slot) -> None:
        self._room.release(slot.offset)

    def holds(self, part: ByteArray) -> bool:
        """Whether these bytes lie here."""
        start = self._memory.ctypes.data
        return start <= part.ctypes.data and part.ctypes.data + part.nbytes <= start + self.capacity_bytes

    def close(self) -> None:
        if self.pinned:
            self._gpu.unpin(self._memory)
            self.pinned = False
        self.ring.close()


class DeviceRing:
    """The bytes of a window on a GPU, which another process writes, as a training maps it.

    Its descriptor travels over the feed's socket, as that of a host ring does
    (docs/decisions/0007-gpu-ring.md).
    """

    def __init__(self, gpu: Gpu, fd: int, capacity_bytes: int, memory: DeviceBytes) -> None:
        """See ``attach``."""
        self.kind = f"ring on {gpu.uuid}"
        self.fd = fd
        self.capacity_bytes = capacity_bytes
        self._gpu = gpu
        self._memory = memory

    @classmethod
    def attach(cls, gpu: Gpu, fd: int, capacity_bytes: int) -> DeviceRing:
        """Map a ring that another process writes; this takes ownership of ``fd``.

        Raises:
            DeviceUnavailable: this GPU cannot reach that one's memory.
        """
        return cls(gpu, fd, capacity_bytes, gpu.open_shared(fd, capacity_bytes))

    def open_for_readers(self) -> int:
        return os.dup(self.fd)

    def write(self, offset: int, part: ByteArray) -> None:
        raise AssertionError("only the process that made a ring writes it")

    def settle(self) -> None:
        """Nothing is written here."""

    def readable(self, offset: int, nbytes: int) -> DeviceBytes:
        assert 0 <= offset and offset + nbytes <= self.capacity_bytes
        return self._memory[offset : offset + nbytes]

    def lend(self, offset: int, nbytes: int, ended: Callable[[], None]) -> DeviceBytes:
        return self._gpu.lend(self._memory, offset, nbytes, ended)

    def close(self) -> None:
        """Close the descriptor; views keep the mapping until the last of them dies."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class FeedersDeviceRing(DeviceRing):
    """The same, as the feeder that made it writes it.

    Args:
        gpu: Where it lies.
        capacity_bytes: Its size.
        staging_bytes: Size of the host memory through which blocks come.

    Raises:
        DeviceUnavailable: the GPU has no room for it.
    """

    def __init__(self, gpu: Gpu, capacity_bytes: int, staging_bytes: int) -> None:
        memory, fd = gpu.share(capacity_bytes)
        super().__init__(gpu, fd, capacity_bytes, memory)
        self.staging = Staging(gpu, staging_bytes)

    def write(self, offset: int, part: ByteArray) -> None:
        if part.nbytes:
            pinned = self.staging.pinned and self.staging.holds(part)
            self._gpu.copy(self.readable(offset, part.nbytes), part, pinned=pinned)

    def settle(self) -> None:
        self._gpu.mark().wait()

    def close(self) -> None:
        if self.fd >= 0:
            self.settle()
            self.staging.close()
        super().close()
