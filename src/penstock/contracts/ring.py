"""The ring: bytes that one process writes and several read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from penstock.contracts.arrays import ByteArray
from penstock.contracts.gpu import DeviceBytes


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
        """Return a range as an array of bytes. It keeps the mapping; the bytes may be reused once released."""
        ...

    def lend(self, offset: int, nbytes: int, ended: Callable[[], None]) -> Any:
        """Return a range for keeping; ``ended`` is called when nothing uses it any more."""
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
