"""How much of a file lies in the page cache, and dropping it from there."""

from __future__ import annotations

import ctypes
import mmap
import os
import time

import numpy as np

BUFFERED = frozenset({"posix", "fio:psync-buffered"})
"""Mechanisms that read through the page cache."""

_WINDOW_BYTES = 1 << 30
_TRIES, _PAUSE_S = 5, 0.05  # pages that are just being read stay

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def cached_share(path: str, nbytes: int) -> float | None:
    """Return the part of a file in the page cache, 0 to 1; None if the kernel does not tell.

    It tells only a process that owns the file or may write it (mincore(2)).
    """
    if os.stat(path).st_uid != os.geteuid() and not os.access(path, os.W_OK):
        return None
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        present = sum(
            _present_pages(fd, start, min(_WINDOW_BYTES, nbytes - start))
            for start in range(0, nbytes, _WINDOW_BYTES)
        )
    except (OSError, ValueError):  # it cannot be mapped
        return None
    finally:
        os.close(fd)
    return min(1.0, present * mmap.PAGESIZE / nbytes)


def dropped(path: str, nbytes: int) -> float | None:
    """Drop a file from the page cache; return what ``cached_share`` says then.

    Raises:
        OSError: the file cannot be opened.
    """
    _drop(path)
    share = cached_share(path, nbytes)
    for _ in range(_TRIES):
        if not share:
            break
        time.sleep(_PAUSE_S)
        _drop(path)
        share = cached_share(path, nbytes)
    return share


def _drop(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)  # dirty pages would stay
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _present_pages(fd: int, start: int, nbytes: int) -> int:
    with mmap.mmap(fd, nbytes, prot=mmap.PROT_READ, offset=start) as mapped:
        memory = np.frombuffer(mapped, np.uint8)
        pages = np.zeros(-(-nbytes // mmap.PAGESIZE), np.uint8)
        status = _libc.mincore(memory.ctypes.data, nbytes, pages.ctypes.data)
        error = ctypes.get_errno()
        del memory  # the map closes only when no view is left
    if status:
        raise OSError(error, os.strerror(error))
    return int(np.count_nonzero(pages & 1))
