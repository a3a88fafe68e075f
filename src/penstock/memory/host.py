"""A ring in host memory: an anonymous file (memfd) that goes with the last process that maps it."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from penstock.contracts import ByteArray
from penstock.memory.recycle import when_dead


class _Span:
    """Names a range of mapped memory for NumPy, and keeps the mapping.

    NumPy takes the range as writable, so that torch accepts it without a
    warning; the pages of a reader are not, and a write to them faults.
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
    """The bytes of a window on the host, written by one process and read by others.

    Pages are taken from the system when first written, and given back when
    the last process that maps them ends, however it ends: there is no name in
    the file system to remove.
    """

    kind = path = "host memfd"

    def __init__(self, fd: int, capacity_bytes: int, *, write: bool) -> None:
        """Map ``fd`` and take ownership of it; see ``create`` and ``attach``."""
        self.fd = fd
        self.capacity_bytes = capacity_bytes
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if write else 0)
        self._mapping: mmap.mmap | None = mmap.mmap(fd, capacity_bytes, mmap.MAP_SHARED, protection)
        with suppress(OSError):  # where the system gives shared memory huge pages, disks read into it faster
            self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self._address = int(np.frombuffer(self._mapping, np.uint8).ctypes.data)
        self._write = write

    @classmethod
    def create(cls, capacity_bytes: int) -> HostRing:
        """A new ring of ``capacity_bytes``, a multiple of the page size, for this process to write."""
        fd = os.memfd_create("penstock-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, capacity_bytes)
            # Who maps it may trust its size: reading past the end of a file kills a process.
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            return cls(fd, capacity_bytes, write=True)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int, capacity_bytes: int) -> HostRing:
        """Map a ring that another process writes; this process can only read it."""
        return cls(fd, capacity_bytes, write=False)

    def open_for_readers(self) -> int:
        """A new descriptor of the ring that cannot be mapped for writing; the caller closes it."""
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)

    def write(self, offset: int, part: ByteArray) -> None:
        self.writable(offset, part.nbytes)[:] = part

    def filled(self, offset: int, nbytes: int) -> None:
        """What is written can be read at once."""

    def settle(self) -> None:
        """So it can."""

    def writable(self, offset: int, nbytes: int) -> ByteArray:
        assert self._write
        return self._view(offset, nbytes)

    def readable(self, offset: int, nbytes: int) -> ByteArray:
        return self._view(offset, nbytes)

    def lend(self, offset: int, nbytes: int, ended: Callable[[], None]) -> ByteArray:
        memory = self.readable(offset, nbytes)
        when_dead(memory, ended)
        return memory

    def _view(self, offset: int, nbytes: int) -> ByteArray:
        assert 0 <= offset and offset + nbytes <= self.capacity_bytes
        assert self._mapping is not None
        return np.asarray(_Span(self._mapping, self._address + offset, nbytes))

    def close(self) -> None:
        """Close the descriptor; views keep the mapping until the last of them dies."""
        if self._mapping is not None:
            os.close(self.fd)
            self._mapping = None
