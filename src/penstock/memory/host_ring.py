"""Bytes on the host: private buffers that are reused, and a ring in an anonymous file (memfd), which is shared.

The ring is freed with the last process that maps it. A loan of its bytes ends when nothing refers to the view that
was lent any more (``when_dead``). ``UnusedPages`` gives the pages at the ring's end back to the kernel.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from io import FileIO

import numpy as np

from penstock.contracts import ByteArray, Gpu
from penstock.errors import PinningRefused
from penstock.linux.files import memory_file, opened
from penstock.linux.when_gone import in_python, when_gone
from penstock.memory.copying import Copier
from penstock.memory.room import ALIGNMENT, Room


def when_dead(array: ByteArray, call: Callable[[], None]) -> None:
    """Call ``call`` once nothing refers to ``array`` or to any view or tensor built on it.

    The call may come in any thread, in the middle of any statement, and twice.
    """
    when_gone(array, in_python(call))


class Recycler:
    """Hands out byte arrays and takes their memory back when they die.

    Freshly mapped pages cost several times the copy into them, so memory of
    dead batches is reused for new ones. Small arrays come from the allocator,
    which recycles them itself.
    """

    SMALL_BYTES = 64 << 10

    def __init__(self, most: int = 8) -> None:
        self._free: deque[ByteArray] = deque(maxlen=most)  # buffers that wait for reuse

    def take(self, nbytes: int) -> ByteArray:
        """Return a writable array of ``nbytes`` with arbitrary content; the caller owns it."""
        if nbytes <= self.SMALL_BYTES:
            return np.empty(nbytes, np.uint8)
        memory = self._fitting(nbytes)
        # A memoryview between the two stops NumPy from shortening the chain of
        # bases: every view of `lent` holds `lent` itself alive.
        lent = np.frombuffer(memory.data, np.uint8, count=nbytes)
        when_gone(lent, map(self._free.append, (memory,)))
        return lent

    def _fitting(self, nbytes: int) -> ByteArray:
        for _ in range(len(self._free)):
            try:
                memory = self._free.popleft()
            except IndexError:  # a batch that died in another thread pushed it out
                break
            if nbytes <= memory.nbytes <= 2 * nbytes + self.SMALL_BYTES:
                return memory
            self._free.append(memory)
        memory = np.empty(nbytes + ALIGNMENT, np.uint8)
        return memory[-memory.ctypes.data % ALIGNMENT :][:nbytes]  # JAX copies unaligned arrays


class _Span:
    """Names a range of mapped memory for NumPy, and holds the mapping.

    The range is declared writable, so that torch does not warn; a
    reader's pages are read-only, and a write to them faults.
    """

    __slots__ = ("__array_interface__", "_mapping")

    def __init__(self, mapping: mmap.mmap, address: int, nbytes: int) -> None:
        self._mapping = mapping
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


class HostRing:
    """The bytes of a window on the host, which another process writes.

    Pages are allocated when first written, and freed when the last process that
    maps them ends, however it ends: no name is left in the file system.
    """

    kind = "host memfd"

    def __init__(self, fd: int, capacity_bytes: int, protection: int = mmap.PROT_READ) -> None:
        """See ``attach``."""
        self.capacity_bytes = capacity_bytes
        self._mapping: mmap.mmap | None = mmap.mmap(fd, capacity_bytes, mmap.MAP_SHARED, protection)
        with suppress(OSError):  # disks read faster into huge pages
            self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self._address = int(np.frombuffer(self._mapping, np.uint8).ctypes.data)
        self._bytes = np.asarray(_Span(self._mapping, self._address, capacity_bytes))

    @classmethod
    def attach(cls, fd: int, capacity_bytes: int) -> HostRing:
        """Map a ring that another process writes; this process can only read it. ``fd`` may then be closed."""
        return cls(fd, capacity_bytes)

    @classmethod
    def attach_pinned(cls, fd: int, capacity_bytes: int, gpu: Gpu) -> HostRing:
        """Map a ring that another process writes, and register it with a GPU.

        A GPU registers only writable pages, so they are mapped writable, and made
        read-only once it has (docs/decisions/0013-pinning.md).
        """
        try:
            file = opened("r+", os.open, f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise PinningRefused(
                f"the ring cannot be opened so that {gpu.name} can register it: {error}"
            ) from None
        with file:
            ring = cls(file.fileno(), capacity_bytes, mmap.PROT_READ | mmap.PROT_WRITE)
            gpu.pin(ring.readable(0, capacity_bytes))
            ring._protect()
        return ring

    def _protect(self) -> None:
        """Make the pages read-only in this process."""
        status = ctypes.CDLL(None, use_errno=True).mprotect(
            ctypes.c_void_p(self._address), ctypes.c_size_t(self.capacity_bytes), mmap.PROT_READ
        )
        assert status == 0, os.strerror(ctypes.get_errno())

    def readable(self, offset: int, nbytes: int) -> ByteArray:
        assert 0 <= offset and offset + nbytes <= self.capacity_bytes
        return self._bytes[offset : offset + nbytes]

    def lend(self, offset: int, nbytes: int, ended: Callable[[], None]) -> ByteArray:
        assert 0 <= offset and offset + nbytes <= self.capacity_bytes
        assert self._mapping is not None
        memory = np.asarray(_Span(self._mapping, self._address + offset, nbytes))  # views of it hold it
        when_dead(memory, ended)
        return memory

    def close(self) -> None:
        """Let the mapping go; views hold it until the last of them dies."""
        if self._mapping is not None:
            self._mapping = None
            del self._bytes


class WritableHostRing(HostRing):
    """The bytes of a window on the host, as the feeder and its loader's workers write them."""

    path = HostRing.kind
    registered = False
    """Whether a GPU or the kernel may have registered its pages, and so would go on using those given back."""

    def __init__(self, file: FileIO, capacity_bytes: int) -> None:
        """Map ``file`` and take ownership of it; see ``create``."""
        self._file = file
        self._copier = Copier()
        super().__init__(self.fd, capacity_bytes, mmap.PROT_READ | mmap.PROT_WRITE)

    @classmethod
    def create(cls, capacity_bytes: int) -> WritableHostRing:
        """Create a ring of ``capacity_bytes``, a multiple of the page size."""
        file = memory_file("penstock-ring", capacity_bytes, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # Its size is sealed: reading past the end of a file would kill a trainer.
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            return cls(file, capacity_bytes)
        except BaseException:
            file.close()
            raise

    @property
    def fd(self) -> int:
        """Its descriptor, until it is closed."""
        return self._file.fileno()

    @property
    def twin(self) -> WritableHostRing:
        return self

    @property
    def resident_bytes(self) -> int:
        """Memory that its pages take; 0 once it is closed."""
        return 0 if self._mapping is None else os.fstat(self.fd).st_blocks * 512

    def give_back(self, start: int) -> None:
        """Give the pages from ``start`` on back to the kernel; they hold zeros until they are written again."""
        assert not self.registered
        assert self._mapping is not None
        self._mapping.madvise(mmap.MADV_REMOVE, start, self.capacity_bytes - start)

    def write(self, offset: int, part: ByteArray) -> None:
        self._copier.copy(self.writable(offset, part.nbytes), part)

    def written_in_place(self, offset: int, nbytes: int) -> None:
        """Do nothing: what is written on the host can be read at once."""

    def flush(self) -> None:
        """Do nothing: what is written on the host can be read at once."""

    def writable(self, offset: int, nbytes: int) -> ByteArray:
        """Return a range to write to."""
        return self.readable(offset, nbytes)

    def open_for_readers(self) -> int:
        """Open a descriptor of the ring that cannot be mapped for writing; the caller closes it."""
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        self._copier.close()
        super().close()
        self._file.close()


LOOK_S = 10.0
"""Pages are given back when they have not been used for one to two such intervals."""
_LEAST_BYTES = 16 << 20
_AT_ONCE_BYTES = 64 << 20  # some milliseconds, during which the feed waits
_ALIGNMENT = 2 << 20  # huge pages stay whole


class UnusedPages:
    """Gives back a ring's end once trainers have come closer together and no longer use it.

    First fit reserves the lowest bytes, so what is not needed is the end. Whoever
    calls this holds the lock that guards the room. Where a ring's pages may be
    registered, all of them stay: a GPU would go on reading those that were given back.
    """

    def __init__(self, room: Room, ring: WritableHostRing) -> None:
        self._room = room  # what is reserved
        self._ring = ring  # where it is reserved
        self._written = 0  # nothing beyond has been written since its pages were given back
        self._peak = 0  # of the last interval
        self._next_look_s = 0.0

    def retain_all(self) -> None:
        """Give no page back from now on: somebody may register the ring."""
        self._ring.registered = True

    def timeout_s(self, now: float) -> float | None:
        """Return the seconds until ``give_back`` should be called; None while there is nothing to give back."""
        unused = max(self._written, self._room.peak) - self._room.top
        if unused < _LEAST_BYTES + _ALIGNMENT or self._ring.registered:
            return None
        return max(0.0, self._next_look_s - now)

    def give_back(self, now: float) -> None:
        """Give back what has not been used for a while, if it is time to look."""
        if now < self._next_look_s:
            return
        self._next_look_s = now + LOOK_S
        recent = max(self._peak, self._room.peak)
        self._written = max(self._written, recent)
        self._peak = self._room.peak
        self._room.forget_peak()
        start = -(-recent // _ALIGNMENT) * _ALIGNMENT
        if self._written - start >= _LEAST_BYTES and not self._ring.registered:
            start = max(start, (self._written - _AT_ONCE_BYTES) // _ALIGNMENT * _ALIGNMENT)
            self._ring.give_back(start)
            self._written = start
