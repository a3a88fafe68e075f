"""Files: opened and closed so that no exception comes between that and the note of it, locked, written whole.

Ctrl-C is raised between two calls. A descriptor that is open, and that nobody has noted yet, would stay open; a
number that is noted, and closed already, may be that of another file when it is closed again."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
import socket
import struct
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from itertools import chain, tee
from operator import itemgetter
from pathlib import Path
from typing import Any

from penstock.errors import BadSetting, LocksRefused, PenstockError
from penstock.linux.when_gone import when_gone

_DESCRIPTOR = struct.Struct("i")
_MOUNTS = Path("/proc/self/mountinfo")
_NOEXEC = Path("/proc/sys/vm/memfd_noexec")
_NOEXEC_SEAL = 8  # memfd_create knows it where that is; Linux 6.3 to 6.5 may demand it


def opened(mode: str, opens: Callable[..., int], *arguments: Any) -> FileIO:
    """Open a file by a function of C's."""
    return next(map(FileIO, map(opens, *zip(arguments, strict=True)), (mode,)))


def memory_file(name: str, nbytes: int = 0, flags: int = os.MFD_CLOEXEC) -> FileIO:
    """Make a file of zeros in memory, which nobody can make executable."""
    with ExitStack() as undo:
        try:
            file = opened("r+", os.memfd_create, name, flags | (_NOEXEC_SEAL if _NOEXEC.exists() else 0))
            undo.callback(file.close)
            file.truncate(nbytes)
        except OSError as error:
            why = ""
            if error.errno in {errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOSYS}:
                why = ": look at the sysctl vm.memfd_noexec, and at what confines this process (seccomp, ...)"
            if error.errno == errno.EFBIG:
                most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
                why = f": no file may have over {most:,} here, in memory neither: raise ulimit -f, or ask for less"
            says = f"no file of {nbytes:,} bytes can be made in memory (memfd_create: {error.strerror}){why}"
            raise PenstockError(says) from None
        undo.pop_all()
        return file


class Descriptors:
    """Descriptors that this process has opened; each is closed once, at the latest when nothing refers to this.

    One call into C opens and notes a descriptor, another forgets and closes it.
    """

    def __init__(self) -> None:
        self._fds: list[int] = []
        when_gone(self, map(os.close, self._fds))

    def open(self, opens: Callable[..., int], *arguments: Any) -> int:
        """Open a descriptor by a function of C's; ``int`` takes over one that is open."""
        return self._noted(map(opens, *zip(arguments, strict=True)))[0]

    def receive(self, connection: socket.socket, most_bytes: int, most: int) -> tuple[bytes, list[int]]:
        """Receive a packet and the descriptors that come with it, as ``socket.recv_fds`` does."""
        room = socket.CMSG_SPACE(most * _DESCRIPTOR.size)
        flags = socket.MSG_CMSG_CLOEXEC
        packets, again = tee(map(connection.recvmsg, (most_bytes,), (room,), (flags,)))
        data = map(itemgetter(2), chain.from_iterable(map(itemgetter(1), packets)))
        fds = self._noted(map(itemgetter(0), chain.from_iterable(map(_DESCRIPTOR.iter_unpack, data))))
        return next(again)[0], fds

    def close(self) -> None:
        while self._fds:
            next(map(os.close, map(self._fds.pop, (-1,))))

    def _noted(self, opening: Iterable[int]) -> list[int]:
        before = len(self._fds)
        self._fds.extend(opening)
        return self._fds[before:]


@contextmanager
def written_whole(path: Path) -> Generator[Path]:
    """Give a name to write a file under, which takes its place at the end, or is removed if that fails."""
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield half
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def file_system(path: str | Path, mounts: Path | None = None) -> str:
    """Return the type of the file system that a file or folder lies on."""
    inside = os.path.realpath(path) + "/"
    best, kind = "", ""
    with open(mounts or _MOUNTS) as lines:
        for line in lines:
            # "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw"; octal escapes in paths
            before, _, after = line.partition(" - ")
            point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), before.split(" ")[4])
            if inside.startswith(point.rstrip("/") + "/") and len(point) >= len(best):
                best, kind = point, after.split(" ")[0]
    return kind


def lock_file(file: int | FileIO, how: int, by: str = "flock") -> None:
    """Lock an open file, by ``flock`` or ``lockf``."""
    try:
        getattr(fcntl, by)(file, how)
    except BlockingIOError:
        raise
    except OSError as error:
        path = os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}")
        why = f"its file system, {file_system(path)}, locks no files ({by}: {error.strerror})"
        raise LocksRefused(error.errno, why, path) from None


@contextmanager
def locked(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> Generator[int]:
    """Hold a file, or a folder (``os.O_RDONLY``), for this process alone, once nobody else does."""
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        lock_file(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def taken(path: Path, flags: int) -> int:
    """Open and lock a file or folder, whoever replaces or removes it meanwhile."""
    while True:
        with ExitStack() as undo:
            fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
            undo.callback(os.close, fd)
            lock_file(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(path)):
                    undo.pop_all()
                    return fd


@contextmanager
def held(folder: Path, of: str, doing: str) -> Generator[None]:
    """Hold a folder of something for this process alone; it is made if need be, and who holds it may remove it."""
    busy = BadSetting(f"another process is {doing} {folder}: wait for it, or give another name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            fd = taken(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # it was held until now
            raise busy from None
    except BlockingIOError:
        raise busy from None
    except OSError as error:
        raise BadSetting(f"{folder} cannot be a folder of {of}: {error.strerror}") from None
    try:
        yield
    finally:
        os.close(fd)


def cache_folder() -> Path:
    """Return the folder, which may not exist."""
    return user_folder("XDG_CACHE_HOME", "~/.cache")


def user_folder(variable: str, unless_set: str) -> Path:
    """Return Penstock's folder in one of the user's, which a variable names; it may not exist."""
    folder = os.environ.get(variable) or unless_set
    try:
        return Path(folder).expanduser().absolute() / "penstock"
    except RuntimeError:
        who = f"neither HOME nor a passwd entry names a home folder (uid {os.getuid()})"
        raise BadSetting(f"{folder}: {who}. Set HOME, or {variable}") from None
