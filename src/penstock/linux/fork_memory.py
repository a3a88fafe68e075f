"""Memory that a disk writes to, when this process forks.

The kernel module takes its pages with get_user_pages, which the kernel does
not count as pinned for I/O. After a fork, private pages are shared with the
child until somebody writes; if we do, we get a copy, and the disk goes on
writing into what is the child's now. Pages that a child does not get at all
(madvise(2), MADV_DONTFORK; libibverbs does the same) stay ours.
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
    """Have no child get these pages; says whether any would have.

    Memory that is shared anyway is left as it is: there is one copy of it.
    """
    if not _would_be_copied(memory):
        return False
    _advise(memory, mmap.MADV_DONTFORK)
    return True


def give_to_children(memory: ByteArray) -> None:
    """The opposite, when no disk writes there any more."""
    _advise(memory, mmap.MADV_DOFORK)


def _would_be_copied(memory: ByteArray) -> bool:
    """Whether a part of it is private, and nobody has kept it from children before (``VmFlags``, proc(5))."""
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
