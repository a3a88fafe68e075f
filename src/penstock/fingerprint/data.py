"""A fingerprint of data: which versions of which files, told without reading them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from datetime import datetime

import msgspec


class FileVersion(msgspec.Struct, frozen=True, array_like=True):
    """One version of a file, or of an object in a store.

    Attributes:
        nbytes: Its size.
        inode: Of a file; another file at the path has another.
        mtime_ns: When its bytes were written, as whoever writes may set it.
        ctime_ns: When anything of it was changed, which nobody can set.
        etag: Of an object in a store; empty for a file.
    """

    nbytes: int
    inode: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    etag: str = ""

    def difference(self, now: FileVersion) -> str:
        """What has become of it, in words; empty if nothing has."""
        if self == now:
            return ""
        if self.nbytes != now.nbytes:
            return f"{self.nbytes:,} bytes then, {now.nbytes:,} now"
        if (self.inode, self.etag) != (now.inode, now.etag):
            return "replaced since"
        at = datetime.fromtimestamp(max(now.mtime_ns, now.ctime_ns) / 1e9)
        return f"changed since, at {at:%Y-%m-%d %H:%M:%S}"


class DataFingerprint(msgspec.Struct, frozen=True):
    """Versions of files, by path as it was given."""

    files: dict[str, FileVersion] = {}

    def difference(self, now: DataFingerprint) -> str:
        """Which files are not as they were, in words; a file that only one of the two has is passed over."""
        found = [
            f"{path} ({told})"
            for path, version in self.files.items()
            if path in now.files and (told := version.difference(now.files[path]))
        ]
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        return ", ".join(found[:3]) + more


def fingerprint_of_files(paths: Iterable[str]) -> DataFingerprint:
    """The fingerprint of those of these paths that are files now."""
    return DataFingerprint({path: version for path in paths if (version := _version(path)) is not None})


def _version(path: str) -> FileVersion | None:
    try:
        seen = os.stat(path)
    except (OSError, ValueError):  # nothing is there, or it is no path
        return None
    if not stat.S_ISREG(seen.st_mode):
        return None
    return FileVersion(seen.st_size, seen.st_ino, seen.st_mtime_ns, seen.st_ctime_ns)
