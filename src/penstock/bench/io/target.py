"""What is read, whether it lies in the page cache, and dropping it from there."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import numpy as np

from penstock.basics.sizes import size_text
from penstock.errors import BadSetting
from penstock.io.files import disk_path, open_file

_PIECE_BYTES = 16 << 20
_WINDOW_BYTES = 1 << 30
_TRIES, _PAUSE_S = 6, 0.05  # pages that are just being read stay

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def is_url(path: str) -> bool:
    """Whether a path is a URL of an object."""
    return re.match(r"[a-z][a-z0-9+.-]*://", path, re.IGNORECASE) is not None


@contextmanager
def opened_target(path: str, scratch_bytes: int, *, named: bool = False) -> Generator[tuple[str, int | None]]:
    """Give the path that a reader opens, and its size; None for an object or disk whose size the reader knows.

    In a directory, make a file of random bytes. It has no name and is gone with this process, however that ends,
    unless it must be ``named``, as for cuFile, which opens it anew.
    """
    if is_url(path) or disk_path(path):
        yield path, None
        return
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = error.strerror if isinstance(error, OSError) else error
        raise BadSetting(f"{path}: {why}. Give a file to read, or a directory for a scratch file") from None
    if stat.S_ISDIR(mode):
        yield from _scratch(path, scratch_bytes, named)
    elif stat.S_ISREG(mode) or stat.S_ISBLK(mode):
        yield path, _size(path)
    else:
        raise BadSetting(f"{path} is neither a file, nor a block device, nor a directory")


def _size(path: str) -> int:
    try:
        fd, nbytes = open_file(path, direct=False)
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror}") from None
    os.close(fd)
    if nbytes == 0:
        raise BadSetting(f"{path} is empty; give a larger file, or a directory for a scratch file")
    return nbytes


def _scratch(directory: str, nbytes: int, named: bool) -> Generator[tuple[str, int]]:
    free = shutil.disk_usage(directory).free
    if nbytes > 0.9 * free:
        raise BadSetting(
            f"{directory} has {size_text(free)} free: too little for a scratch file of {size_text(nbytes)}; "
            "give a smaller --size"
        )
    make = tempfile.NamedTemporaryFile if named else tempfile.TemporaryFile
    with ExitStack() as stack:
        try:
            file = stack.enter_context(make(dir=directory, prefix="penstock-"))
            for start in range(0, nbytes, _PIECE_BYTES):
                file.write(np.random.default_rng().bytes(min(_PIECE_BYTES, nbytes - start)))
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            raise BadSetting(f"{directory}: no scratch file can be written there: {error.strerror}") from None
        yield str(file.name) if named else f"/proc/{os.getpid()}/fd/{file.fileno()}", nbytes


def cached_share(path: str, nbytes: int) -> float | None:
    """Return the part of a file in the page cache, 0 to 1; None if the kernel does not report it.

    It does so only to a process that owns the file or may write it (mincore(2)).
    """
    if os.stat(path).st_uid != os.geteuid() and not os.access(path, os.W_OK):
        return None
    present = 0
    with open(path, "rb") as file:
        for start in range(0, nbytes, _WINDOW_BYTES):
            size = min(_WINDOW_BYTES, nbytes - start)
            pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
            try:
                with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ, offset=start) as mapped:
                    address = np.frombuffer(mapped, np.uint8).ctypes.data
                    if _libc.mincore(address, size, pages.ctypes.data):
                        return None
            except (OSError, ValueError):  # it cannot be mapped
                return None
            present += np.count_nonzero(pages & 1)
    return min(1.0, present * mmap.PAGESIZE / nbytes)


def dropped(path: str, nbytes: int) -> float | None:
    """Drop a file from the page cache; return ``cached_share`` afterwards."""
    share = None
    with open(path, "rb") as file:
        for _ in range(_TRIES):
            os.fsync(file.fileno())  # dirty pages would stay
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            share = cached_share(path, nbytes)
            if not share:
                break
            time.sleep(_PAUSE_S)
    return share
