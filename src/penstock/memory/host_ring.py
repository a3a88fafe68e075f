"""A ring in host memory: an anonymous file (memfd), freed with the last process that maps it."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from io import FileIO

import numpy as np

from penstock.contracts import ByteArray, Gpu
from penstock.errors import PinningRefused
from penstock.linux.descriptors import opened
from penstock.memory.array_lifetimes import when_dead


class _Span:
    """Names a range of mapped memory for NumPy, and keeps the mapping.

    NumPy is told that the range is writable, so that torch does not warn; a
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

        Raises:
            PinningRefused: the system does not allow it.
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
        memory = np.asarray(_Span(self._mapping, self._address + offset, nbytes))  # views of it keep it
        when_dead(memory, ended)
        return memory

    def close(self) -> None:
        """Let the mapping go; views keep it until the last of them dies."""
        if self._mapping is not None:
            self._mapping = None
            del self._bytes


class WritableHostRing(HostRing):
    """The bytes of a window on the host, as the feeder and its loader's workers write them.

    Attributes:
        registered: Whether a GPU or the kernel may have registered its pages, and so would go on using those that
            are given back.
    """

    path = HostRing.kind
    registered = False

    def __init__(self, file: FileIO, capacity_bytes: int) -> None:
        """Map ``file`` and take ownership of it; see ``create``."""
        self._file = file
        super().__init__(self.fd, capacity_bytes, mmap.PROT_READ | mmap.PROT_WRITE)

    @classmethod
    def create(cls, capacity_bytes: int) -> WritableHostRing:
        """Create a ring of ``capacity_bytes``, a multiple of the page size."""
        file = opened("r+", os.memfd_create, "penstock-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            file.truncate(capacity_bytes)
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
        self.writable(offset, part.nbytes)[:] = part

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
        super().close()
        self._file.close()
