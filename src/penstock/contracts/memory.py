"""Bytes in memory: a GPU's, the copies to and from it, and a ring that one process writes and several read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

ByteArray = npt.NDArray[np.uint8]
Ids = npt.NDArray[np.int64]
"""Samples by their number in the data set: ``dataset[id]`` is the sample."""


DeviceBytes = Any
"""Memory of a GPU: a flat torch tensor of uint8."""


class Event(Protocol):
    """A point in a GPU's work, such as a CUDA event."""

    stream: Any  # where it lies

    def passed(self) -> bool:
        """Whether everything before it is done."""
        ...

    def wait(self) -> None:
        """Sleep until it has passed."""
        ...


class Gpu(Protocol):
    """A GPU as one process sees it.

    Memory and copies belong to the calling thread's current stream: they are in order with what it launches.
    Within ``beside`` they belong to a stream of the GPU's own, where copies run one after the other, beside what
    the process computes; only ``Event.wait`` and ``synchronize`` wait for those.
    """

    @property
    def name(self) -> str:
        """Name for a person: ``"cuda:0"``."""
        ...

    @property
    def uuid(self) -> str:
        """UUID, which does not depend on the GPU's number in this process."""
        ...

    def pin(self, memory: ByteArray) -> None:
        """Register host memory, so that copies from and to it are asynchronous.

        Its pages must be writable during the call (docs/decisions/0013-pinning.md), and must not be a private
        mapping of a file: the device would read copies of it from then on.

        Raises:
            PinningRefused: the system does not allow it; the message says why.
        """
        ...

    def unpin(self, memory: ByteArray) -> None:
        """Give up a registration; no copy from or to the memory may be under way."""
        ...

    def beside(self) -> AbstractContextManager[object]:
        """Take memory and copy beside what the process computes, until the end of the ``with`` block."""
        ...

    def current(self) -> object:
        """Return this thread's current stream, equal to itself only."""
        ...

    def follow(self, stream: Any, memory: Sequence[DeviceBytes]) -> None:
        """Let what this thread launches from now on run after all that is on a stream, and use this memory."""
        ...

    def captures(self) -> bool:
        """Whether this thread's current stream captures a CUDA graph, which would take up what is launched now."""
        ...

    def empty(self, nbytes: int) -> DeviceBytes:
        """Allocate memory on the device, with arbitrary content."""
        ...

    def copy(self, to: DeviceBytes, origin: ByteArray, *, pinned: bool) -> None:
        """Begin to copy host bytes to the device; pinned ones must not change until a later point has passed."""
        ...

    def copy_within(self, to: DeviceBytes, origin: DeviceBytes) -> None:
        """Begin to copy from a ring on a GPU; ``origin`` must not change until a later point has passed."""
        ...

    def gather(self, to: DeviceBytes, origin: Any, rows: Ids, row_bytes: int, *, pinned: bool) -> None:
        """Begin to copy rows of a ring, one after the other: by their numbers, from a GPU's or the host's.

        ``origin`` must not change until a later point has passed, unless it is host memory that is not pinned.
        """
        ...

    def copy_out(self, to: ByteArray, origin: DeviceBytes) -> None:
        """Begin to copy from the device to host memory; the bytes are there once a later mark has passed."""
        ...

    def share(self, nbytes: int) -> tuple[DeviceBytes, int]:
        """Allocate memory that other processes can map; return it and its descriptor.

        Raises:
            DeviceUnavailable: too little memory is free; the message says how much.
        """
        ...

    def open_shared(self, fd: int, nbytes: int) -> DeviceBytes:
        """Map memory that another process shares, read-only if the driver can enforce that.

        Raises:
            DeviceUnavailable: this GPU cannot reach it, or would read a copy of it.
        """
        ...

    def lend(self, memory: DeviceBytes, offset: int, nbytes: int, ended: Callable[[], None]) -> DeviceBytes:
        """Lend a range of mapped memory to a trainer that holds it.

        ``collect`` calls ``ended`` when nothing refers to the range any more and what was launched on it is
        done; it knows only of the stream that is current where the last reference dies. The mapping lives
        until then.
        """
        ...

    def collect(self, *, wait: bool = False) -> bool:
        """Call ``ended`` for the loans that are over; return whether none is left whose views have died.

        With ``wait``, sleep until what was launched on those is done.
        """
        ...

    def collect_all(self) -> None:
        """Wait for the loans that are over, and from now on for each loan when it ends."""
        ...

    def mark(self) -> Event:
        """Return the point after all copies begun beside so far."""
        ...

    def here(self) -> Event:
        """Return the point after all that was begun and launched on this thread's current stream so far."""
        ...

    def synchronize(self) -> None:
        """Sleep until all copies begun beside so far are done."""
        ...

    def wait_for_copies(self, memory: Sequence[DeviceBytes], mark: Event) -> None:
        """Let what this thread launches from now on run after the mark of copies beside, and use this memory."""
        ...

    def wait_for_compute(self, memory: Sequence[DeviceBytes]) -> None:
        """Let copies begun beside from now on run after what this thread has launched, and read this memory."""
        ...

    def holds(self, tensor: Any) -> bool:
        """Whether a tensor lies on this GPU."""
        ...


class Ring(Protocol):
    """Bytes that one process writes and several read, as a reader maps them.

    A ring knows nothing of blocks: ``memory.room`` knows which bytes are free, and
    the feed's state who still reads them.
    """

    @property
    def kind(self) -> str:
        """The path taken, as ``statistics()`` names it: ``"host memfd"``."""
        ...

    @property
    def capacity_bytes(self) -> int:
        """Size of the window, in bytes."""
        ...

    def readable(self, offset: int, nbytes: int) -> Any:
        """Return a range as an array of bytes. It holds the mapping; the bytes may be reused once released."""
        ...

    def lend(self, offset: int, nbytes: int, ended: Callable[[], None]) -> Any:
        """Return a range to hold; ``ended`` is called when nothing uses it any more."""
        ...

    def close(self) -> None:
        """Give up the mapping, which lasts until its last view dies."""
        ...


class WritableRing(Ring, Protocol):
    """A ring, as the process that made it writes it."""

    @property
    def path(self) -> str:
        """How blocks get into the ring, as ``statistics()`` names it."""
        ...

    @property
    def twin(self) -> WritableRing:
        """The host ring with equal bytes at equal offsets; a host ring is its own twin."""
        ...

    def write(self, offset: int, part: ByteArray | DeviceBytes) -> None:
        """Copy bytes into the ring; readers see them after ``flush``."""
        ...

    def written_in_place(self, offset: int, nbytes: int) -> None:
        """Take over what workers have written into the twin; readers see it after ``flush``."""
        ...

    def flush(self) -> None:
        """Wait until all that was written can be read."""
        ...

    def open_for_readers(self) -> int:
        """Open a descriptor by which another process attaches; the caller closes it."""
        ...
