"""Where feeds are found: one private directory per user, a lock and a socket for each feed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import stat
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import cast

import msgspec

from penstock.errors import BadSetting, FeedExists, InsecureDirectory
from penstock.feed.fork import close_in_children, fill_standard_descriptors

MAX_NAME_CHARACTERS = 1000
_AWAIT_LOCK_S = 10.0


class Owner(msgspec.Struct):
    """What a lock file says of the feeder that holds it."""

    name: str
    pid: int


def directory() -> Path:
    """The directory of this user's feeds, made if needed with mode 0700.

    It is ``$PENSTOCK_DIR``, else ``penstock`` in ``$XDG_RUNTIME_DIR``, else
    ``/tmp/penstock-<uid>``.

    Raises:
        InsecureDirectory: it belongs to another user, or others may enter it.
    """
    uid = os.getuid()
    if chosen := os.environ.get("PENSTOCK_DIR"):
        path = Path(chosen)
    elif (runtime := os.environ.get("XDG_RUNTIME_DIR")) and os.access(runtime, os.W_OK):
        path = Path(runtime) / "penstock"
    else:
        path = Path(f"/tmp/penstock-{uid}")
    with suppress(FileExistsError):  # it may not be a directory, which is told below
        path.mkdir(mode=0o700, parents=True)
    seen = path.lstat()
    if not stat.S_ISDIR(seen.st_mode):
        raise InsecureDirectory(f"{path} is not a directory; remove it, or set PENSTOCK_DIR to another")
    if seen.st_uid != uid:
        raise InsecureDirectory(
            f"{path} belongs to uid {seen.st_uid}, you are uid {uid}: whoever owns it could read your "
            "batches. Set PENSTOCK_DIR to a directory of your own"
        )
    if seen.st_mode & 0o077:
        raise InsecureDirectory(
            f"{path} has mode {stat.S_IMODE(seen.st_mode):04o}, others may enter it: chmod 700 {path}"
        )
    return path


class Place:
    """The files of one feed. Their names are a digest, so a feed may have any name."""

    def __init__(self, name: str) -> None:
        given = cast("object", name)  # of any type: it comes from a user
        if not isinstance(given, str):
            raise BadSetting(f"a feed's name is text, not a {type(given).__name__}")
        if not name or len(name) > MAX_NAME_CHARACTERS:
            raise BadSetting(f"a feed's name has 1 to {MAX_NAME_CHARACTERS} characters, this one has {len(name)}")
        try:
            encoded = name.encode()
        except UnicodeEncodeError:
            raise BadSetting(f"a feed's name is text, and {name!r} is no valid Unicode") from None
        fill_standard_descriptors()
        self.name = name
        self._stem = hashlib.sha256(encoded).hexdigest()[:24]
        self._directory = directory()

    @property
    def lock_path(self) -> Path:
        return self._directory / f"{self._stem}.lock"

    @property
    def socket_path(self) -> Path:
        return self._directory / f"{self._stem}.sock"

    @property
    def log_path(self) -> Path:
        """Standard error of a feeder that ``share`` started; removed when it ends well."""
        return self._directory / f"{self._stem}.log"

    def acquire(self) -> FileIO | None:
        """Take the feed's lock, or None while another process has it.

        It belongs to the open file, which a child process may be handed, and
        goes with the last that has it, whatever ends them.
        """
        while True:
            fd = os.open(self.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            lock = FileIO(fd, "r+")
            close_in_children(lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                return None
            if _is(fd, self.lock_path):
                self.write_owner(lock)
                return lock
            lock.close()  # its last owner removed it between our open and our lock

    def await_lock(self) -> FileIO:
        """Take the feed's lock, waiting while it is held by nobody that serves: a sweeper, or a feeder that ends.

        Raises:
            FeedExists: another feeder serves the name, or has been starting for seconds.
        """
        deadline = time.monotonic() + _AWAIT_LOCK_S
        while (lock := self.acquire()) is None:
            if self._is_served() or time.monotonic() > deadline:
                raise self._taken()
            time.sleep(0.01)
        return lock

    def write_owner(self, lock: FileIO) -> None:
        """Note this process as the one that holds the lock."""
        os.ftruncate(lock.fileno(), 0)
        os.pwrite(lock.fileno(), msgspec.msgpack.encode(Owner(self.name, os.getpid())), 0)

    def owner(self) -> Owner | None:
        """Who holds, or last held, the lock."""
        return _read_owner(self.lock_path)

    def remove(self, lock: FileIO) -> None:
        """Remove the feed's files and give the lock up; only who holds it may."""
        if _is(lock.fileno(), self.lock_path):  # not yet removed by a process that shared the lock
            for path in (self.socket_path, self.log_path, self.lock_path):
                path.unlink(missing_ok=True)
        lock.close()

    def sweep(self) -> str:
        """Remove what a dead feeder left, unless another serves the name; returns the end of its log."""
        lock = self.acquire() if self.lock_path.exists() else None
        if lock is None:
            return ""
        try:
            log = self.log_path.read_text(errors="replace").strip()[-400:]
        except FileNotFoundError:
            log = ""
        self.remove(lock)
        return log

    def listen(self) -> socket.socket:
        """The feed's socket, bound and listening; the lock must be held."""
        self.socket_path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with _opened(self._directory) as where:
            listener.bind(f"{where}/{self.socket_path.name}")
        listener.listen(256)
        return listener

    def connect(self) -> socket.socket:
        """A connection to the feeder.

        Raises:
            OSError: nobody listens there.
        """
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with _opened(self._directory) as where:
                peer.connect(f"{where}/{self.socket_path.name}")
        except OSError:
            peer.close()
            raise
        return peer

    def _is_served(self) -> bool:
        try:
            self.connect().close()
        except OSError:
            return False
        return True

    def _taken(self) -> FeedExists:
        """The error for a second feeder on this name."""
        owner = self.owner()
        who = f"process {owner.pid}" if owner else "another process"
        return FeedExists(
            f"a feed named {self.name!r} is served by {who} already: attach to it, choose another name, "
            f"or end it with: penstock stop {self.name!r}"
        )


def places() -> Iterator[Place]:
    """Every feed that has left a lock here, alive or not."""
    for path in sorted(directory().glob("*.lock")):
        owner = _read_owner(path)
        if owner is not None:
            yield Place(owner.name)


@contextmanager
def _opened(path: Path) -> Generator[str]:
    """A short path to a directory, however long its own is: a socket's path has at most 107 bytes."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _is(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _read_owner(path: Path) -> Owner | None:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=Owner)
    except (OSError, msgspec.DecodeError):  # gone, or not yet written
        return None
