"""The kernel module's file of a disk: its registers, and memory that the disk may write to.

Requests and their layout: github.com/enfiskutensykkel/ssd-gpu-dma, src/linux/ioctl.h,
which github.com/ZaidQureshi/bam still has. The module maps whole pages of memory,
and gives the bus address of each.

It takes them with get_user_pages, which the kernel does not count as pinned for I/O. After a
fork, private pages are shared with the child until one of the two writes; if this process does,
it gets a copy, and the disk goes on writing into the child's pages. Pages that a child does not
get at all (madvise(2), MADV_DONTFORK, as in libibverbs) stay this process's.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np

from penstock.contracts import ByteArray
from penstock.errors import ReaderUnavailable
from penstock.io.files import devices
from penstock.io.nvme.queue_memory import PAGE_BYTES, Array
from penstock.io.reader import smaps_of

MAP_REQUEST = struct.Struct("QQQ")
"""Address of the memory, number of its pages, and address to which their bus addresses are written."""
UNMAP_REQUEST = struct.Struct("Q")

_TYPE = 0x80
_WRITE = 1  # _IOC_WRITE of <asm/ioctl.h>: the kernel reads what the request points to


def _request(number: int, argument: struct.Struct) -> int:
    """``_IOW`` of <asm/ioctl.h>."""
    return _WRITE << 30 | argument.size << 16 | _TYPE << 8 | number


NVM_MAP_HOST_MEMORY = _request(1, MAP_REQUEST)
NVM_UNMAP_MEMORY = _request(3, UNMAP_REQUEST)

_NOT_MAPPED = 2**64 - 1
_SEE_LOG = "the kernel's log may have more: dmesg"


class LibnvmModule:
    """A disk under BaM's kernel module.

    A mapping outlives the file and the process, and only the thread that made it
    can undo it (the module compares ``current``). So one thread makes and undoes
    all mappings.
    """

    def __init__(self, path: str) -> None:
        self.path = path  # the module's file, such as ``/dev/libnvm0``
        with ExitStack() as undo:
            try:
                self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                undo.callback(os.close, self._fd)
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise _refusal(path, error) from None
            # Unlock: a view of the registers holds the file open.
            undo.callback(fcntl.flock, self._fd, fcntl.LOCK_UN)
            self._thread = ThreadPoolExecutor(1, "penstock-libnvm")
            undo.callback(self._thread.shutdown)
            self._undo = undo.pop_all()
        self._hidden_from_children: list[ByteArray] = []
        self._mapped: dict[int, ByteArray] = {}  # by address, until the disk cannot write there

    def registers(self, nbytes: int) -> Array:
        """Map the disk's first registers (BAR 0), in whole pages, as words of 32 bits."""
        nbytes = -(-nbytes // PAGE_BYTES) * PAGE_BYTES
        try:
            return np.frombuffer(mmap.mmap(self._fd, nbytes), np.uint32)
        except OSError as error:
            raise ReaderUnavailable(
                f"{self.path}: {nbytes:,} bytes of registers cannot be mapped "
                f"({error.strerror}, errno {error.errno})",
                _SEE_LOG,
            ) from None

    def map_host(self, memory: ByteArray) -> Array:
        """Let the disk write to host memory, which stays in place until ``close``.

        Returns:
            The bus address of each page of 4096 bytes.
        """
        start, pages = memory.ctypes.data, memory.nbytes // PAGE_BYTES
        if start % PAGE_BYTES or memory.nbytes % PAGE_BYTES:
            raise ReaderUnavailable(
                f"{self.path}: a disk reads into whole pages, and these {memory.nbytes:,} bytes begin at byte "
                f"{start % PAGE_BYTES} of one and end at byte {(start + memory.nbytes) % PAGE_BYTES}",
                "take memory of penstock.io.reader.host_memory, a multiple of 4096 bytes",
            )
        table = np.full(pages, _NOT_MAPPED, np.uint64)
        try:
            if _children_would_get(memory):
                _advise(memory, mmap.MADV_DONTFORK)
                self._hidden_from_children.append(memory)
            self._ask(NVM_MAP_HOST_MEMORY, MAP_REQUEST.pack(start, pages, table.ctypes.data))
        except OSError as error:
            raise ReaderUnavailable(
                f"{self.path}: {memory.nbytes:,} bytes of host memory cannot be mapped for the disk "
                f"({error.strerror}, errno {error.errno})",
                f"give less memory; {_SEE_LOG}",
            ) from None
        self._mapped[start] = memory
        if missing := np.count_nonzero(table == _NOT_MAPPED):
            raise ReaderUnavailable(
                f"{self.path}: {missing:,} of {pages:,} pages of host memory were not mapped for the disk",
                "read into memory that this process may write",
            )
        return table

    def close(self, *, unmap: bool = True) -> None:
        """Undo the mappings, and close the disk.

        Without ``unmap``, for a disk that may still write, its pages stay taken until the module is unloaded.
        """
        with self._undo:
            if unmap:
                # Upwards: to the module an address also names a mapping that begins up to 64 KiB before it.
                refused = [why for start in sorted(self._mapped) if (why := self._unmap(start))]
                for memory in self._hidden_from_children:
                    _advise(memory, mmap.MADV_DOFORK)
                if refused:
                    raise ReaderUnavailable(
                        f"{self.path}: {len(refused)} of {len(self._mapped)} mappings of memory cannot be undone "
                        f"({refused[0]})",
                        "they stay until the kernel module is unloaded",
                    )

    def _unmap(self, start: int) -> str:
        try:
            self._ask(NVM_UNMAP_MEMORY, UNMAP_REQUEST.pack(start))
        except OSError as error:
            return f"{error.strerror}, errno {error.errno}"
        return ""

    def _ask(self, request: int, argument: bytes) -> None:
        self._thread.submit(fcntl.ioctl, self._fd, request, argument).result()


def _refusal(path: str, error: OSError) -> ReaderUnavailable:
    if error.errno in (errno.ENOENT, errno.ENXIO, errno.ENODEV):
        here = ", ".join(devices()) or "none"
        return ReaderUnavailable(
            f"{path} is not there (disks under BaM's kernel module: {here})",
            "load the module (libnvm.ko of github.com/ZaidQureshi/bam), and bind the disk to it",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return ReaderUnavailable(
            f"{path} cannot be opened by you (errno {error.errno}): whoever may can have the disk write "
            "anywhere in memory",
            f"as root: chown {os.geteuid()} {path}",
        )
    if error.errno == errno.EWOULDBLOCK:
        return ReaderUnavailable(f"{path} is read by another reader already, and a disk has one", "close that")
    return ReaderUnavailable(f"{path} cannot be opened: {error.strerror} (errno {error.errno})", _SEE_LOG)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _children_would_get(memory: ByteArray) -> bool:
    """Whether a fork would copy any of it (``VmFlags``, proc(5)): of shared memory there is only one copy."""
    lines = smaps_of(memory)
    return any(not shared and line.startswith("VmFlags:") and "dc" not in line.split() for shared, line in lines)


def _advise(memory: ByteArray, advice: int) -> None:
    if _libc.madvise(memory.ctypes.data, memory.nbytes, advice):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
