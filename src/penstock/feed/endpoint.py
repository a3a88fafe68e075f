"""How feeds are found: each has a lock and a socket in the user's private directory."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shlex
import socket
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from io import FileIO
from pathlib import Path
from typing import cast

import msgspec
import psutil

from penstock.errors import BadSetting, DirectoryUnusable, FeedExists, InsecureDirectory
from penstock.feed.directory import directory, entered, usable
from penstock.linux.files import lock_file, opened
from penstock.linux.fork import close_in_children, fill_standard_descriptors

MAX_NAME_CHARACTERS = 1000
ANSWER_S = 10.0
"""A healthy feeder answers a new connection within this time."""
_AWAIT_LOCK_S = 10.0
_MOST_OWNER_BYTES = 8192
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Owner(msgspec.Struct):
    """Content of a lock file: the feeder that holds it."""

    name: str
    pid: int


class Endpoint:
    """The files of one feed. Their names are a digest, so a feed may have any name."""

    def __init__(self, name: str) -> None:
        self.name = checked_name(name)
        fill_standard_descriptors()
        stem = hashlib.sha256(name.encode()).hexdigest()[:24]
        self._directory = directory()
        self.lock_path = self._directory / f"{stem}.lock"
        self.socket_path = self._directory / f"{stem}.sock"
        self.log_path = self._directory / f"{stem}.log"

    def acquire(self) -> FileIO | None:
        """Take the feed's lock; None while another process holds it.

        The lock belongs to the open file, which a child process may inherit. It is
        freed when the last process that has the file ends, however it ends.
        """
        while True:
            with usable(self._directory), entered(self._directory) as where:
                lock = opened("r+", partial(os.open, dir_fd=where), self.lock_path.name, _OPEN_LOCK, 0o600)
                seen = os.fstat(lock.fileno())
            if not stat.S_ISREG(seen.st_mode) or seen.st_nlink > 1:  # writing would destroy another file
                lock.close()
                raise InsecureDirectory(f"{self.lock_path} is no lock of Penstock's; remove it")
            close_in_children(lock)
            try:
                lock_file(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                lock.close()
                if isinstance(error, BlockingIOError):
                    return None
                with usable(self._directory):
                    raise
            if self.is_lock(os.fstat(lock.fileno())):
                self.write_owner(lock)
                return lock
            lock.close()  # its last owner removed it between our open and our lock

    def await_lock(self) -> FileIO:
        """Take the feed's lock; wait while its holder does not serve (it sweeps, starts or ends)."""
        deadline = time.monotonic() + _AWAIT_LOCK_S
        while (lock := self.acquire()) is None:
            if self._is_served() or time.monotonic() > deadline:
                raise self._taken()
            time.sleep(0.01)
        return lock

    def write_owner(self, lock: FileIO) -> None:
        """Write this process into the lock file as its owner; give up the lock if that fails."""
        content = msgspec.msgpack.encode(Owner(self.name, os.getpid()))
        try:
            with usable(self._directory):
                os.ftruncate(lock.fileno(), 0)
                if os.pwrite(lock.fileno(), content, 0) < len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except DirectoryUnusable:
            self.remove(lock)
            raise

    def owner(self) -> Owner | None:
        """Read who holds, or last held, the lock."""
        return _owner_in(self._directory, self.lock_path.name)

    def owner_is_stopped(self) -> bool:
        """Whether the process that holds the lock has been stopped, as by SIGSTOP or a debugger."""
        owner = self.owner()
        try:
            state = psutil.Process(owner.pid).status() if owner else ""
        except psutil.Error:
            return False
        return state in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)

    def is_lock(self, seen: os.stat_result) -> bool:
        """Whether a file's status is that of the feed's lock file."""
        with suppress(FileNotFoundError), entered(self._directory) as where:
            return os.path.samestat(seen, os.stat(self.lock_path.name, dir_fd=where, follow_symlinks=False))
        return False

    def remove(self, lock: FileIO) -> None:
        """Remove the feed's files and give up the lock, which the caller holds."""
        if lock.closed:
            return
        try:
            # A directory that others can enter by now is left as it is: its next user gets the error.
            with suppress(InsecureDirectory):
                if self.is_lock(os.fstat(lock.fileno())):  # not yet removed by a process that shared the lock
                    with entered(self._directory) as where:
                        for path in (self.socket_path, self.log_path, self.lock_path):
                            _remove(where, path)
        except Exception:  # not what interrupts: the next call goes on
            lock.close()
            raise
        lock.close()

    def sweep(self) -> str:
        """Remove what a dead feeder left, unless another serves the name; return the end of its log."""
        with suppress(FileNotFoundError, InsecureDirectory, DirectoryUnusable):
            with entered(self._directory) as where:
                os.stat(self.lock_path.name, dir_fd=where, follow_symlinks=False)
            if (lock := self.acquire()) is not None:
                log = self.log_end(400).strip()
                self.remove(lock)
                return log
        return ""

    def open_log(self) -> FileIO:
        """Create the file for the standard error of a feeder that ``share`` starts."""
        with usable(self._directory), entered(self._directory) as where:
            _remove(where, self.log_path)
            return opened("w", partial(os.open, dir_fd=where), self.log_path.name, _WRITE_NEW, 0o600)

    def log_end(self, most: int) -> str:
        """Return the last ``most`` bytes of that file as text; empty if there is none."""
        with suppress(OSError), entered(self._directory) as where:
            return _read(where, self.log_path.name, most).decode(errors="replace")
        return ""

    def listen(self) -> socket.socket:
        """Bind the feed's socket and listen on it; the caller holds the lock."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with usable(self._directory), entered(self._directory) as where:
                _remove(where, self.socket_path)
                listener.bind(_address(where, self.socket_path.name))
            listener.listen(256)
        except BaseException:
            listener.close()
            raise
        return listener

    def connect(self, wait_s: float = ANSWER_S) -> socket.socket:
        """Connect to the feeder."""
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # While the backlog is full, connect() waits for no longer than the send timeout.
            _limit_sending(peer, max(wait_s, 0.001))
            with entered(self._directory) as where:
                peer.connect(_address(where, self.socket_path.name))
            _limit_sending(peer, 0)
        except BlockingIOError:
            peer.close()
            raise TimeoutError from None
        except BaseException:
            peer.close()
            raise
        return peer

    def _is_served(self) -> bool:
        try:
            self.connect(1).close()
        except TimeoutError:  # by one that does not answer
            return True
        except OSError:
            return False
        return True

    def _taken(self) -> FeedExists:
        """Make the error for a second feeder on this name."""
        owner = self.owner()
        who = f"process {owner.pid}" if owner else "another process"
        return FeedExists(
            f"a feed named {self.name!r} is served by {who} already: attach to it, choose another name, "
            f"or end it with: penstock stop {shlex.quote(self.name)}"
        )


def checked_name(name: str) -> str:
    """Return the name of a feed, checked."""
    given = cast("object", name)  # of any type: it comes from a user
    if not isinstance(given, str):
        raise BadSetting(f"a feed's name must be a string, not {type(given).__name__} {given!r}")
    if not name or len(name) > MAX_NAME_CHARACTERS:
        raise BadSetting(f"a feed's name has 1 to {MAX_NAME_CHARACTERS} characters, this one has {len(name)}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise BadSetting(f"a feed's name is text, and {name!r} is no valid Unicode") from None
    return name


def endpoints() -> Iterator[Endpoint]:
    """Yield every feed that has a lock here, alive or dead; skip other files."""
    here = directory()
    with usable(here), entered(here) as where:
        files = sorted(file for file in os.listdir(where) if file.endswith(".lock"))
    for file in files:
        with suppress(BadSetting):  # no feed has such a name
            owner = _owner_in(here, file)
            if owner is not None and (endpoint := Endpoint(owner.name)).lock_path.name == file:
                yield endpoint


def credentials(connection: socket.socket) -> tuple[int, int]:
    """Return (pid, uid) of the process at the other end, as the kernel knows them."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", packed)
    return pid, uid


def _address(where: int, name: str) -> str:
    """Return a path to a socket within the limit of 107 bytes, however long its directory's path."""
    return f"/proc/self/fd/{where}/{name}"


def _limit_sending(peer: socket.socket, limit_s: float) -> None:
    seconds, rest = divmod(limit_s, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(seconds), int(rest * 1e6)))


def _remove(where: int, path: Path) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path.name, dir_fd=where)


def _read(where: int, name: str, most: int) -> bytes:
    """Read the last ``most`` bytes of a file."""
    with opened("r", partial(os.open, dir_fd=where), name, _READ) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most)


def _owner_in(directory: Path, name: str) -> Owner | None:
    try:
        with entered(directory) as where:
            return msgspec.msgpack.decode(_read(where, name, _MOST_OWNER_BYTES), type=Owner)
    except InsecureDirectory:
        raise
    except Exception:  # gone, not yet written, or whatever lies there: it is no lock of ours
        return None
