"""A fingerprint of data: versions of files, found without reading those of more than 1 MiB."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from itertools import islice
from pathlib import Path, PurePath
from time import monotonic, sleep, time_ns

import msgspec

from penstock.basics.terminal import listed

_MOST_FILES = 16
_MOST_CHARACTERS = 1000
_RECENT_NS = 86_400 * 10**9
_READ_BYTES = 1 << 20
_TICK_NS = 20 * 10**6  # times of files are those of the clock's last tick
_TRUNCATION_NS = 10**9  # a file that is truncated is open only after the disk has done so
_waited_for: set[str] = set()  # files that were open for writing, or empty, all the while: logs and locks


class FileVersion(msgspec.Struct, frozen=True, array_like=True):
    """One version of a file, or of an object in a store."""

    nbytes: int
    inode: int = 0  # inode of a file, which differs if the file was replaced
    mtime_ns: int = 0  # time of the last write, which a writer can set
    ctime_ns: int = 0  # time of the last change of any kind, which cannot be set
    etag: str = ""
    """ETag of an object in a store, or a digest of a file's bytes, and then no inode and time; else empty."""

    @classmethod
    def of(cls, status: os.stat_result) -> FileVersion:
        """Return the version of a file by its ``os.stat``."""
        return cls(status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)

    def difference(self, now: FileVersion) -> str:
        """Describe how its bytes have changed; empty if they have not.

        A change of permissions or links, which moves the ctime too, does not count. Compare versions with ``==``
        where bytes rewritten with their time set back would do harm.
        """
        if self.nbytes != now.nbytes:
            return f"{self.nbytes:,} bytes then, {now.nbytes:,} now"
        if (self.inode, self.etag) != (now.inode, now.etag):
            return "replaced since"
        if self.mtime_ns != now.mtime_ns:
            return f"written to since, at {datetime.fromtimestamp(now.mtime_ns / 1e9):%Y-%m-%d %H:%M:%S}"
        return ""


class DataFingerprint(msgspec.Struct, frozen=True):
    """Versions of files, by absolute path."""

    files: dict[str, FileVersion] = {}

    def difference(self, now: DataFingerprint) -> str:
        """Describe which files have changed; files that only one of the two has are ignored."""
        found = [
            f"{path} ({change})"
            for path, version in self.files.items()
            if path in now.files and (change := version.difference(now.files[path]))
        ]
        return listed(found)

    def common(self, other: DataFingerprint) -> DataFingerprint:
        """The files whose versions are the same in both."""
        return DataFingerprint({path: v for path, v in self.files.items() if other.files.get(path) == v})


def may_name_data(value: object) -> bool:
    """Whether a value may be the path of a file that is no code."""
    return isinstance(value, (str, PurePath)) and not str(value).endswith((".py", ".pyc"))


def fingerprint_of_files(paths: Iterable[str]) -> DataFingerprint:
    """Compute the fingerprint of the first 16 of these paths that are files now.

    A file of up to 1 MiB has its bytes as its version: one that each run writes anew, such as an index, stays
    the same. What may be amid that is waited for: a file that another process has open for writing, that changes
    while it is read, has changed within 20 ms, or is empty for less than 1 s; up to 2 s, once by each process.
    Empty files have no version, and none has a file that is open for writing then, as far as this process may see:
    locks, logs, and what is not ready.
    """
    listed, until_s = list(paths), monotonic() + 2.0
    while True:
        now_ns = time_ns()
        found = dict(islice(((path, version) for path in listed if (version := _version(path))), _MOST_FILES))
        read = {path: _read(path, version) for path, version in found.items()}
        recent = {os.path.realpath(path) for path in found if found[path].mtime_ns > now_ns - _RECENT_NS}
        written = [*_being_written(recent)] if recent else []
        writers = {path for path, _ in written}
        moving = writers - {path for path, pid in written if pid == os.getpid()}
        for path in (closed := [path for path in found if os.path.realpath(path) not in writers]):
            age_ns = now_ns - found[path].ctime_ns
            if _version(path) != found[path] or age_ns < (_TICK_NS if found[path].nbytes else _TRUNCATION_NS):
                moving.add(path)
        if moving <= _waited_for or monotonic() > until_s:
            break
        sleep(0.005)
    _waited_for.update(moving, (path for path in closed if not read[path].nbytes))
    return DataFingerprint({path_text(os.path.abspath(path)): read[path] for path in closed if read[path].nbytes})


def _read(path: str, version: FileVersion) -> FileVersion:
    if version.nbytes <= _READ_BYTES:
        with suppress(OSError):  # it may not be read
            content = Path(path).read_bytes()
            return FileVersion(len(content), etag=hashlib.sha256(content).hexdigest())
    return version


def _being_written(paths: set[str]) -> Iterator[tuple[str, int]]:
    """Yield those of some real paths that a process has open for writing, and its pid."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended, or is another user's
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    if (path := os.readlink(f"/proc/{pid}/fd/{fd}")) in paths:
                        text = Path(f"/proc/{pid}/fdinfo/{fd}").read_text()
                        flags = re.search(r"flags:\s*([0-7]+)", text)
                        if flags and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY:
                            yield path, int(pid)


def path_text(path: str) -> str:
    """Return a path as valid Unicode, which Linux's need not be."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _version(path: str) -> FileVersion | None:
    if len(path) > _MOST_CHARACTERS:
        return None
    try:
        seen = os.stat(path)
    except (OSError, ValueError):  # nothing is there, or it is no path
        return None
    return FileVersion.of(seen) if stat.S_ISREG(seen.st_mode) else None
