"""Keeps memory that a disk writes to in this process when it forks.

The kernel module takes its pages with get_user_pages, which the kernel does
not count as pinned for I/O. After a fork, private pages are shared with the
child until one of the two writes; if this process does, it gets a copy, and
the disk goes on writing into the child's pages. Pages that a child does not get
at all (madvise(2), MADV_DONTFORK, as in libibverbs) stay this process's.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re

from penstock.contracts import ByteArray

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def keep_from_children(memory: ByteArray) -> bool:
    """Keep these pages from children; return whether a child would have got them.

    Shared memory is left as it is: there is only one copy of it.
    """
    if not _would_be_copied(memory):
        return False
    _advise(memory, mmap.MADV_DONTFORK)
    return True


def give_to_children(memory: ByteArray) -> None:
    """Let children get these pages again, when no disk writes there any more."""
    _advise(memory, mmap.MADV_DOFORK)


def _would_be_copied(memory: ByteArray) -> bool:
    """Whether any of it is private, and not kept from children yet (``VmFlags``, proc(5))."""
    start, stop = memory.ctypes.data, memory.ctypes.data + memory.nbytes
    private = False
    with open("/proc/self/smaps", encoding="ascii", errors="replace") as smaps:
        for line in smaps:
            if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ...([ps]) ", line):
                private = int(bounds[1], 16) < stop and int(bounds[2], 16) > start and bounds[3] == "p"
            elif private and line.startswith("VmFlags:") and "dc" not in line.split():
                return True
    return False


def _advise(memory: ByteArray, advice: int) -> None:
    if _libc.madvise(memory.ctypes.data, memory.nbytes, advice):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
