"""Opening files for the mechanisms that read through the kernel, and names of disks that the kernel does not have.

Disks under BaM's kernel module are ``/dev/libnvm0``, and ``/dev/libnvm0n2`` for another namespace.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import stat
import struct
from glob import glob
from typing import NamedTuple

from penstock.errors import ReaderUnavailable

_PATH = re.compile(r"(/dev/libnvm\d+)(?:n([1-9]\d*))?")


class DiskPath(NamedTuple):
    """A namespace of a disk."""

    device: str  # the kernel module's file
    nsid: int  # number of the namespace, from 1; the module has no files for namespaces, only Penstock names them


def disk_path(path: str) -> DiskPath | None:
    """Parse the path of a disk under the module; None for another path."""
    named = _PATH.fullmatch(path)
    return DiskPath(named[1], int(named[2] or 1)) if named else None


def devices() -> list[str]:
    """List the disks that the module has taken from the kernel's own driver."""
    return sorted(path for path in glob("/dev/libnvm*") if disk_path(path))


def refuse_disk(path: str) -> None:
    """Refuse a disk under the module."""
    if disk_path(path):
        raise ReaderUnavailable(
            f"{path} is a disk under BaM's kernel module: the kernel has no blocks and no files of it",
            "read it with mech='gpu'",
        )


DIRECT_ALIGNMENT = 4096
"""An alignment that suits O_DIRECT on every disk: Linux mounts none with larger logical blocks."""


def direct_aligned(nbytes: int) -> int:
    """Round a size up to what O_DIRECT reads."""
    return -(-nbytes // DIRECT_ALIGNMENT) * DIRECT_ALIGNMENT


_NO_FILES = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
}

_AT_EMPTY_PATH = 0x1000
_STATX_DIOALIGN = 0x2000
_STATX_BYTES = 256
_STATX_MASK_AT, _DIO_ALIGN_AT = 0, 0x98

_libc = ctypes.CDLL(None, use_errno=True)


def open_file(path: str, *, direct: bool) -> tuple[int, int]:
    """Open a file or block device; return a descriptor and its size."""
    refuse_disk(path)
    try:
        refuse_what_is_no_file(os.stat(path).st_mode)
    except ValueError as error:  # a NUL in the path, or half a character
        raise OSError(errno.EINVAL, f"no file can have this name ({error})") from None
    # O_NONBLOCK: a pipe that has just come in its place would wait for a writer.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        refuse_what_is_no_file(status.st_mode)
        fcntl.fcntl(fd, fcntl.F_SETFL, 0)
        if direct:
            _bypass_the_cache(fd, path)
        nbytes = os.lseek(fd, 0, os.SEEK_END) if stat.S_ISBLK(status.st_mode) else status.st_size
    except BaseException:
        os.close(fd)
        raise
    return fd, nbytes


def refuse_what_is_no_file(mode: int) -> None:
    """Raise OSError for the mode of a directory, or of what may stand for ever, such as a pipe."""
    kind = stat.S_IFMT(mode)
    if kind in _NO_FILES:
        raise OSError(errno.EISDIR if kind == stat.S_IFDIR else errno.EINVAL, f"it is {_NO_FILES[kind]}, no file")


def _bypass_the_cache(fd: int, path: str) -> None:
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise ReaderUnavailable(
            f"{path} lies on {file_system(path)}, which has no O_DIRECT", "read it with mech='posix'"
        ) from None


def direct_alignment(fd: int) -> int:
    """Return the alignment that O_DIRECT needs for offsets, sizes and addresses in this file, in bytes.

    Linux 6.1 and newer report it for most file systems (``statx(2)``, STATX_DIOALIGN);
    elsewhere it is ``DIRECT_ALIGNMENT``.
    """
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    if not hasattr(_libc, "statx") or _libc.statx(fd, b"", _AT_EMPTY_PATH, _STATX_DIOALIGN, answer):
        return DIRECT_ALIGNMENT
    (mask,) = struct.unpack_from("=I", answer, _STATX_MASK_AT)
    of_memory, of_offset = struct.unpack_from("=II", answer, _DIO_ALIGN_AT)
    if not mask & _STATX_DIOALIGN or not of_offset:
        return DIRECT_ALIGNMENT
    return max(of_memory, of_offset)


def file_system(path: str) -> str:
    """Return the type of a path's file system, such as "ext4"."""
    import psutil

    real = os.path.realpath(path)
    mounts = [
        m for m in psutil.disk_partitions(all=True) if os.path.commonpath([m.mountpoint, real]) == m.mountpoint
    ]
    return max(mounts, key=lambda m: len(m.mountpoint)).fstype if mounts else "an unknown file system"
