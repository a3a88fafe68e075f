"""A folder of slabs, one for each data set, within a size.

Only whole data sets go to make room: those that were not opened for longest, first.
"""

from __future__ import annotations

import errno
import fcntl
import math
import mmap
import os
import re
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import msgspec

from penstock.basics.sizes import size_text
from penstock.errors import BadSetting, LocksRefused
from penstock.fingerprint.file_versions import path_text
from penstock.io.cache.keys import hash64
from penstock.io.cache.slab import Allowance, Slab
from penstock.linux.files import lock_file, written_whole

_FORMAT = 1
_NAME = re.compile(r"penstock-[0-9a-f]{16}-[a-z]+")
_INDEX, _DATA, _OPEN, _ABOUT = _FILES = ("index", "data", "open", "about.json")
"""In the order in which they are deleted: bytes without an index are found by nobody."""
_LOCK = "penstock.lock"
_PROBE_BYTES = 8 << 20


class About(msgspec.Struct, frozen=True):
    """The description in the slab of a data set."""

    root: str  # what the samples are read from
    kind: str  # ``"bytes"`` as they are stored, ``"pixels"``, or ``"rows"`` of a packed data set
    format: int = _FORMAT


class DataSet(NamedTuple):
    """A data set in a cache."""

    path: Path  # folder of its slab
    about: About
    nbytes: int  # size of its files
    opened_s: float  # when it was opened last, as ``time.time()``

    @property
    def in_use(self) -> bool:
        """Whether a process has it open now."""
        return _is_open(self.path)


class CacheFolder:
    """A folder that holds slabs, made if there is none; files of others in it are left alone."""

    unused = "its folder may only be read, or is full"  # why no slab was opened

    def __init__(self, path: str | Path, limit: int, *, shared: bool = False) -> None:
        self.path = Path(os.path.abspath(os.path.expanduser(path)))
        self._limit = limit  # most bytes of all slabs together
        self._shared = shared  # whether others of the folder's group may read and add
        try:
            if not self.path.is_dir():
                self.path.mkdir(parents=True, exist_ok=True)
                self.path.chmod(0o2770 if shared else 0o700)
            os.listdir(self.path)
        except OSError as error:
            why = f"{self.path} cannot be used as a cache: {error.strerror}"
            if isinstance(error, PermissionError):
                why += ". Its owner may share it (Cache(..., shared=True)), or name a folder of yours"
            raise BadSetting(why) from None

    def open(self, root: str, kind: str) -> Slab | None:
        """Open the slab of a data set, which is made if there is none; None if that cannot be.

        The folder may only be read, or is being removed, or its disk is full or locks no files.
        """
        path = _path(self.path, root, kind)
        exists = (path / _INDEX).exists()
        writes = os.access(path / _INDEX if exists else self.path, os.W_OK)
        if not writes and not exists:
            return None
        try:
            with self._locked():
                if writes:
                    self.room(path, 0)  # less may be asked for than lies there
                alone = writes and exists and not _is_open(path)
                about = About(path_text(root), kind)
                slab = self._opened(path, about, writes=writes)
                if alone and slab is not None and slab.is_worn_out:
                    slab.close()
                    _drop(path)
                    slab = self._opened(path, about, writes=writes)
                return slab
        except LocksRefused as error:
            self.unused = str(error.strerror)
            return None

    def _opened(self, path: Path, about: About, *, writes: bool) -> Slab | None:
        flags = os.O_CLOEXEC | (os.O_RDWR | os.O_CREAT if writes else os.O_RDONLY)
        opened: list[int] = []
        try:
            if writes:
                self._make(path, about)
            names = [path / _OPEN, path / _DATA, path / _INDEX, *([self.path / _LOCK] if writes else [])]
            opened.extend(self._descriptor(name, flags) for name in names)
            lock_file(opened[0], fcntl.LOCK_SH)
        except OSError as error:
            for fd in opened:
                os.close(fd)
            if isinstance(error, LocksRefused) or error.errno in (errno.ENOSPC, errno.ENOENT):
                return None
            raise BadSetting(f"{path} cannot be opened: {error.strerror}") from None
        held, data, index, *locks = opened
        with suppress(OSError):  # it may only be read
            os.utime(held)
        direct = None
        if reads_direct(self._limit):
            with suppress(OSError):  # a file system without it
                direct = os.open(path / _DATA, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        lock = locks[0] if locks else None
        return Slab(data, index, lock, partial(self.room, path), direct, held, str(path / _DATA))

    def room(self, own: Path, wanted: int) -> Allowance:
        """Make room by dropping data sets that nobody has open; to be called while the folder is locked."""
        try:
            sets = list(self.data_sets())
        except OSError as error:
            return Allowance(0, f"its folder cannot be listed ({error.strerror})")
        others = {each.path: each.nbytes for each in sorted(sets, key=lambda each: each.opened_s)}
        others.pop(own, None)
        free = self._limit - sum(each.nbytes for each in sets)
        for path, nbytes in list(others.items()):
            if free < wanted and _drop(path):
                free += nbytes
                del others[path]
        beside = f", of which others have {size_text(sum(others.values()))}" if others else ""
        return Allowance(max(0, free), f"its {size_text(self._limit)} are full{beside}")

    def data_sets(self) -> Iterator[DataSet]:
        """Yield the data sets that lie here."""
        for path in sorted(self.path.iterdir()):
            if not _NAME.fullmatch(path.name):
                continue
            try:
                about = msgspec.json.decode((path / _ABOUT).read_bytes(), type=About)
                nbytes = sum((path / name).stat().st_size for name in (_DATA, _INDEX))
                yield DataSet(path, about, nbytes, (path / _OPEN).stat().st_mtime)
            except (OSError, msgspec.DecodeError):  # none of ours, or just being dropped
                continue

    def drop(self, path: Path) -> bool:
        """Delete a data set's slab, unless a process has it open."""
        with self._locked():
            return _drop(path)

    def _make(self, path: Path, about: About) -> None:
        path.mkdir(mode=0o2770 if self._shared else 0o700, exist_ok=True)
        if self._shared:
            with suppress(PermissionError):  # another user's, who has done so
                path.chmod(0o2770)
        if not (path / _ABOUT).exists():
            with written_whole(path / _ABOUT) as half:
                os.close(self._descriptor(half, os.O_WRONLY | os.O_CREAT))
                half.write_bytes(msgspec.json.encode(about))

    def _descriptor(self, path: Path, flags: int) -> int:
        fd = os.open(path, flags, 0o660 if self._shared else 0o600)
        if self._shared and flags & os.O_CREAT:
            with suppress(PermissionError):  # another user's, who has done so
                os.fchmod(fd, 0o660)
        return fd

    @contextmanager
    def _locked(self) -> Generator[None]:
        try:
            fd = self._descriptor(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        except OSError:  # it may only be read, so nobody drops what lies here
            yield
            return
        try:
            lock_file(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def reads_direct(limit: int) -> bool:
    """Whether a cache of this size is read past the kernel's page cache.

    The page cache holds what was read last: a cycle finds nothing of that if not all of it fits.
    """
    import psutil  # which a worker, who asks nobody, need not wait for

    return limit > psutil.virtual_memory().available // 2


def read_rate(folder: str, *, direct: bool) -> float:
    """Measure how fast a new file in a folder is read, in bytes per second; infinite if none can be made."""
    memory = mmap.mmap(-1, _PROBE_BYTES)
    memory.write(os.urandom(_PROBE_BYTES))
    try:
        file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
    except OSError:
        return math.inf
    fd = file.fileno()
    try:
        os.pwrite(fd, memory, 0)
        if direct:
            os.fsync(fd)
            with suppress(OSError):  # a file system without it
                fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)
        began = perf_counter()
        for at in range(0, _PROBE_BYTES, _PROBE_BYTES // 8):
            os.preadv(fd, [memoryview(memory)[: _PROBE_BYTES // 8]], at)
        return _PROBE_BYTES / (perf_counter() - began)
    except OSError:
        return math.inf
    finally:
        file.close()


def open_to_read(folder: str, root: str, kind: str) -> Slab | None:
    """Open a data set's slab in another node's folder; None if there is none yet."""
    return slab_to_read(_path(Path(folder), root, kind))


def slab_to_read(path: Path) -> Slab | None:
    """Open the slab in a folder of its own; None if there is none."""
    opened: list[int] = []
    try:
        opened.extend(os.open(path / name, os.O_RDONLY | os.O_CLOEXEC) for name in (_OPEN, _DATA, _INDEX))
        lock_file(opened[0], fcntl.LOCK_SH)
    except OSError:
        for fd in opened:
            os.close(fd)
        return None
    held, data, index = opened
    return Slab(data, index, None, lambda _: Allowance(0, ""), held=held)


def _path(folder: Path, root: str, kind: str) -> Path:
    return folder / f"penstock-{hash64(root):016x}-{kind}"


def _is_open(path: Path) -> bool:
    try:
        # Over NFS, a lock for one alone needs a file that may be written.
        writes = os.access(path / _OPEN, os.W_OK)
        fd = os.open(path / _OPEN, (os.O_RDWR if writes else os.O_RDONLY) | os.O_CLOEXEC)
    except FileNotFoundError:  # just dropped
        return False
    try:
        lock_file(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _drop(path: Path) -> bool:
    """Delete the files of a slab that nobody has open; whatever else lies in its folder stays."""
    try:
        if _is_open(path):
            return False
        for name in _FILES:
            (path / name).unlink(missing_ok=True)
        with suppress(OSError):  # something of others lies there
            path.rmdir()
    except OSError:
        return False
    return True
