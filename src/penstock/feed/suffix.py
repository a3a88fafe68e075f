"""Which feed of a name a run reads: the environment, or a file that it names, appends a suffix."""

from __future__ import annotations

import os
import re

from penstock.errors import BadSetting
from penstock.feed.endpoint import checked_name

_SUFFIX = "PENSTOCK_FEED_SUFFIX"
_FILE = "PENSTOCK_FEED_FILE"
_PARTED = re.compile(r"(.+)-pace-\d+\.\d+")


def root_of(name: str) -> str:
    """Return the name of the first feed of a family, from which the others have parted."""
    parted = _PARTED.fullmatch(name)
    return parted[1] if parted else name


def parted_name(root: str, number: int) -> str:
    """Return a name for the feed that this process's feed parts into; it has done so this many times."""
    return f"{root}-pace-{os.getpid()}.{number}"


class FeedOfRun:
    """The feed that this run reads under a name.

    ``PENSTOCK_FEED_SUFFIX=b`` puts a run on the feed ``NAME-b``. The file of ``PENSTOCK_FEED_FILE``, if that is
    set, holds the suffix instead, and may be replaced while the run goes on: ``RowStream`` looks at it before each
    epoch. Whoever writes it may not know a run's data: ``b-{data}`` stands for a suffix that is another for other
    data, and for none where nobody knows it, as in ``attach``.
    """

    def __init__(self, name: str, data: str = "") -> None:
        self._name = checked_name(name)  # the name in the script
        self._data = f"-{data[:6]}" if data else ""  # from the digest of what it is made of; empty if nobody knows
        self._file = os.environ.get(_FILE, "")
        self.follows = bool(self._file)  # whether a file says which feed it is, now or later
        self.version = self.newest()  # version of the file that named it; None without a file
        self.asked = self.named()  # the feed that was named last

    def newest(self) -> tuple[int, ...] | None:
        """Return what tells the file from those that replace it; None without a file. It costs one stat."""
        try:
            seen = os.stat(self._file) if self._file else None
        except OSError:
            return None
        return seen and (seen.st_ino, seen.st_mtime_ns, seen.st_size)

    def named(self) -> str:
        """Return the feed that is named now."""
        suffix, where = os.environ.get(_SUFFIX, ""), f"{_SUFFIX}="
        if self._file:
            suffix, where = self._read(), f"{_FILE}={self._file} with "
            suffix = suffix.replace("-{data}", self._data) if self._data or "{data}" not in suffix else ""
        if not suffix:
            return self._name
        try:
            return checked_name(f"{self._name}-{suffix}")
        except BadSetting as error:
            raise BadSetting(f"{where}{suffix!r} is appended to {self._name!r}: {error}") from None

    def _read(self) -> str:
        try:
            with open(self._file, errors="surrogateescape") as file:
                return file.read().strip()
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise BadSetting(f"{_FILE}={self._file} cannot be read: {error.strerror}") from None
