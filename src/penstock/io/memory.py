"""Memory to read into.

A disk gets a list of the pieces of memory to write, and scattered pages are
separate pieces: a read of 1 MiB into pages of 4 KiB has 256 of them, more than
many disks take at once. On huge pages it has one (docs/decisions/0009-readers.md).
"""

from __future__ import annotations

import mmap
import re
from contextlib import suppress

import numpy as np

from penstock.contracts import ByteArray


def host_memory(nbytes: int) -> ByteArray:
    """Allocate zeroed memory, on huge pages where the kernel has some to give."""
    mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, np.uint8)


def lies_on_huge_pages(memory: ByteArray) -> bool | None:
    """Whether most of the resident pages are huge (``/proc/PID/smaps``, proc(5)); None if none is resident.

    The kernel walks this process's pages for it, which takes milliseconds.
    """
    start, stop = memory.ctypes.data, memory.ctypes.data + memory.nbytes
    huge = present = 0
    inside = False
    with open("/proc/self/smaps", encoding="ascii", errors="replace") as smaps:
        for line in smaps:
            if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
                inside = int(bounds[1], 16) < stop and int(bounds[2], 16) > start
            elif inside and line.startswith("Rss:"):
                present += int(line.split()[1])
            elif inside and line.startswith(("AnonHugePages:", "ShmemPmdMapped:")):
                huge += int(line.split()[1])
    return 2 * huge > present if present else None
