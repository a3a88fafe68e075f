"""Files: opened and closed so that no exception comes between that and the note of it, locked, written whole.

Ctrl-C is raised between two calls. A descriptor that is open, and that nobody has noted yet, would stay open; a
number that is noted, and closed already, may be that of another file when it is closed again."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from itertools import chain, tee
from operator import itemgetter
from pathlib import Path
from typing import Any

from penstock.errors import BadSetting
from penstock.linux.when_gone import when_gone

_DESCRIPTOR = struct.Struct("i")


def opened(mode: str, opens: Callable[..., int], *arguments: Any) -> FileIO:
    """Open a file by a function of C's."""
    return next(map(FileIO, map(opens, *zip(arguments, strict=True)), (mode,)))


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


@contextmanager
def locked(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> Generator[int]:
    """Hold a file, or a folder (``os.O_RDONLY``), for this process alone, once nobody else does."""
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def taken(path: Path, flags: int) -> int:
    """Open and lock a file or folder, whoever replaces or removes it meanwhile.

    Raises:
        BlockingIOError: another process has locked it.
    """
    while True:
        with ExitStack() as undo:
            fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
            undo.callback(os.close, fd)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(path)):
                    undo.pop_all()
                    return fd


@contextmanager
def held(folder: Path, of: str, doing: str) -> Generator[None]:
    """Hold a folder of something for this process alone; it is made if need be, and who holds it may remove it.

    Raises:
        BadSetting: it cannot be made; or another process holds it, which is "comparing in" it, or the like.
    """
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
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
