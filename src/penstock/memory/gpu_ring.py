"""A ring in a GPU's memory, which every trainer on that GPU maps, and how blocks get there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import numpy as np

from penstock.contracts import ByteArray, DeviceBytes, Gpu
from penstock.errors import DeviceUnavailable, PinningRefused
from penstock.linux.files import Descriptors
from penstock.memory.cuda import gpu_of
from penstock.memory.host_ring import WritableHostRing

_LOOK_S = 0.25
_PIECE_BYTES = 4 << 20
"""Of so many bytes of a block each is on its way to the GPU while the next are copied on the host."""


class DeviceRing:
    """The bytes of a window on a GPU, which another process writes.

    Its descriptor travels over the feed's socket (docs/decisions/0007-gpu-ring.md).
    """

    def __init__(self, gpu: Gpu, capacity_bytes: int, memory: DeviceBytes) -> None:
        """See ``attach``."""
        self.kind = f"ring on {gpu.uuid}"
        self.capacity_bytes = capacity_bytes
        self._gpu = gpu
        self._memory = memory

    @classmethod
    def attach(cls, gpu: Gpu, fd: int, capacity_bytes: int) -> DeviceRing:
        """Map a ring that another process writes; ``fd`` may then be closed."""
        return cls(gpu, capacity_bytes, gpu.open_shared(fd, capacity_bytes))

    def readable(self, offset: int, nbytes: int) -> DeviceBytes:
        assert 0 <= offset and offset + nbytes <= self.capacity_bytes
        return self._memory[offset : offset + nbytes]

    def lend(self, offset: int, nbytes: int, ended: Callable[[], None]) -> DeviceBytes:
        return self._gpu.lend(self._memory, offset, nbytes, ended)

    def close(self) -> None:
        """Let the mapping go; views hold it until the last one dies."""
        self.__dict__.pop("_memory", None)


class WritableDeviceRing(DeviceRing):
    """The bytes of a window on a GPU as the feeder writes them, and their *twin*: a host ring with equal bytes.

    A loader's workers write into the twin, the GPU copies from there to an
    equal offset, and trainers that cannot map the ring read the twin. It is
    as large as the ring, and registered with the GPU where the system allows
    that (docs/decisions/0008-host-twin.md).
    """

    def __init__(self, gpu: Gpu, capacity_bytes: int) -> None:
        memory, fd = gpu.share(capacity_bytes)
        super().__init__(gpu, capacity_bytes, memory)
        self._shared = Descriptors()
        self._fd = self._shared.open(int, fd)
        self.twin = WritableHostRing.create(capacity_bytes)  # the ring on the host
        self.twin.registered = True
        self._pinned: ByteArray | None = self.twin.readable(0, capacity_bytes)
        self.path = f"{self.kind}, copied from its pinned twin on the host"
        """How blocks get to the GPU, as ``statistics()`` names it."""
        try:
            gpu.pin(self._pinned)
        except PinningRefused as refused:
            self._pinned = None
            self.path = f"{self.kind}, copied from its twin on the host by way of a buffer ({refused})"

    def write(self, offset: int, part: ByteArray | DeviceBytes) -> None:
        """Copy bytes from the host or this GPU to the ring and to its twin."""
        if isinstance(part, np.ndarray):
            for at in range(0, part.nbytes, _PIECE_BYTES):
                piece = cast(ByteArray, part[at : at + _PIECE_BYTES])
                self.twin.write(offset + at, piece)
                self.written_in_place(offset + at, piece.nbytes)  # while the next one is copied on the host
        elif part.nbytes:
            self._gpu.wait_for_compute([part])
            with self._gpu.beside():
                self._gpu.copy_within(self.readable(offset, part.nbytes), part)
                self._gpu.copy_out(self.twin.writable(offset, part.nbytes), part)

    def written_in_place(self, offset: int, nbytes: int) -> None:
        """Copy to the GPU what workers have written into the twin."""
        if nbytes:
            origin = self.twin.readable(offset, nbytes)
            with self._gpu.beside():
                self._gpu.copy(self.readable(offset, nbytes), origin, pinned=self._pinned is not None)

    def flush(self) -> None:
        self._gpu.synchronize()

    def open_for_readers(self) -> int:
        return os.dup(self._fd)

    def close(self) -> None:
        with suppress(RuntimeError):  # of a GPU that has failed, which copies no more
            self.flush()
        if self._pinned is not None:
            self._gpu.unpin(self._pinned)
            self._pinned = None
        self.twin.close()
        self._shared.close()
        super().close()


FeedRing = WritableHostRing | WritableDeviceRing
MakeRing = Callable[[str | Gpu, int], tuple[FeedRing, Gpu | None]]
"""Makes a feed's ring of a number of bytes in the memory that it asks for; returns it, and its GPU."""


def ring_in(memory: str | Gpu, capacity_bytes: int) -> tuple[FeedRing, Gpu | None]:
    """Make a feed's ring where it asks for it.

    Raises:
        DeviceUnavailable: there is no such GPU, or no room on it.
    """
    gpu = gpu_of(memory)
    return (WritableDeviceRing(gpu, capacity_bytes) if gpu else WritableHostRing.create(capacity_bytes)), gpu


def ring_on_host(why: str, capacity_bytes: int) -> tuple[FeedRing, None]:
    """Make a feed's ring on the host, though it asks for a GPU's."""
    ring = WritableHostRing.create(capacity_bytes)
    ring.path = f"{ring.path} ({why})"
    return ring, None


def ring_in_or_on_host(
    memory: str | Gpu, capacity_bytes: int, *, patience_s: float
) -> tuple[FeedRing, Gpu | None]:
    """Make the ring of a feed that goes on, whose readers hold the one before for a while; then on the host."""
    until_s = time.monotonic() + patience_s
    while True:
        try:
            return ring_in(memory, capacity_bytes)
        except (DeviceUnavailable, RuntimeError) as refused:  # torch's, where there is no room for a context
            if time.monotonic() >= until_s:
                return ring_on_host(f"{memory} could not be used for {patience_s:g} s: {refused}", capacity_bytes)
            time.sleep(_LOOK_S)
