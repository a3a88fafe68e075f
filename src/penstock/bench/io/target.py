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
from typing import NamedTuple

import numpy as np

from penstock.basics.sizes import size_text
from penstock.errors import BadSetting
from penstock.io.files import disk_path, open_file

_PIECE_BYTES = 16 << 20


class Target(NamedTuple):
    """A file, device or object to be read, never written."""

    path: str  # path that a reader opens
    name: str  # name for a person
    nbytes: int | None
    """Its size; None for an object or a disk under BaM's kernel module, whose size the reader knows."""

    @property
    def is_file(self) -> bool:
        return self.nbytes is not None


def is_url(path: str) -> bool:
    """Whether a path is a URL of an object."""
    return re.match(r"[a-z][a-z0-9+.-]*://", path, re.IGNORECASE) is not None


@contextmanager
def opened_target(path: str, scratch_bytes: int, *, named: bool = False) -> Generator[Target]:
    """Open what is to be read.

    In a directory, make a file of random bytes without a name: it is gone with
    this process, however that ends.

    Args:
        named: Whether that file needs a name, as for cuFile, which opens it anew.
    """
    if is_url(path) or disk_path(path):
        yield Target(path, path, None)
        return
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = error.strerror if isinstance(error, OSError) else error
        raise BadSetting(f"{path}: {why}. Give a file to read, or a directory for a scratch file") from None
    if stat.S_ISDIR(mode):
        yield from _scratch(path, scratch_bytes, named)
    elif stat.S_ISREG(mode) or stat.S_ISBLK(mode):
        yield Target(path, path, _size(path))
    else:
        raise BadSetting(f"{path} is neither a file, nor a block device, nor a directory")


def _size(path: str) -> int:
    try:
        fd, nbytes = open_file(path, direct=False)
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror}") from None
    os.close(fd)
    if nbytes == 0:
        raise BadSetting(
            f"{path} is empty: there is nothing to read. Give a directory to have a scratch file made"
        )
    return nbytes


def _scratch(directory: str, nbytes: int, named: bool) -> Generator[Target]:
    if os.path.realpath(directory).split("/")[1:2] == ["dev"]:
        raise BadSetting(f"{directory} lies under /dev, where this writes nothing; give a directory on a disk")
    free = shutil.disk_usage(directory).free
    if nbytes > 0.9 * free:
        raise BadSetting(
            f"{directory} has {size_text(free)} free: too little for a scratch file of {size_text(nbytes)}; "
            "give a smaller --size"
        )
    with ExitStack() as stack:
        try:
            make = tempfile.NamedTemporaryFile if named else tempfile.TemporaryFile
            file = stack.enter_context(make(dir=directory, prefix="penstock-"))
            random = np.random.default_rng()
            for start in range(0, nbytes, _PIECE_BYTES):
                file.write(random.bytes(min(_PIECE_BYTES, nbytes - start)))
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            raise BadSetting(f"{directory}: no scratch file can be written there: {error.strerror}") from None
        name = f"a scratch file of {size_text(nbytes)} in {directory}"
        yield Target(str(file.name) if named else f"/proc/{os.getpid()}/fd/{file.fileno()}", name, nbytes)


BUFFERED = frozenset({"posix", "fio:psync-buffered"})
"""Mechanisms that read through the page cache."""

_WINDOW_BYTES = 1 << 30
_TRIES, _PAUSE_S = 5, 0.05  # pages that are just being read stay

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def cached_share(path: str, nbytes: int) -> float | None:
    """Return the part of a file in the page cache, 0 to 1; None if the kernel does not report it.

    It does so only to a process that owns the file or may write it (mincore(2)).
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
    """Drop a file from the page cache; return ``cached_share`` afterwards."""
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
