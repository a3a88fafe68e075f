"""Series, and files of points to which one writer appends."""

from __future__ import annotations

import math
import os
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import BadSetting
from penstock.linux.files import taken
from penstock.runs.store.folder import usable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Series(NamedTuple):
    """Points of one name, oldest first.

    Attributes:
        times_s: Seconds since 1970, to the microsecond.
        values: What was measured; NaN and infinities are values.
    """

    times_s: NDArray[np.float64]
    values: NDArray[np.float64]

    def at(self, times_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what was measured last at or before each of some moments; NaN where nothing was."""
        import numpy as np

        places = np.searchsorted(self.times_s, times_s, side="right")
        return np.concatenate([[np.nan], self.values])[places]

    @property
    def last(self) -> float | None:
        """The newest value; None without points."""
        return float(self.values[-1]) if len(self.values) else None

    def rise_per_s(self, recent_s: float = math.inf) -> float | None:
        """Return how fast a counter rose, per second; None if there is no time between its points.

        Args:
            recent_s: Seconds before the newest point that count; the newest two points do in any case.
        """
        if len(self.times_s) < 2:
            return None
        first = min(int((self.times_s < self.times_s[-1] - recent_s).sum()), len(self.times_s) - 2)
        passed_s = float(self.times_s[-1] - self.times_s[first])
        return float(self.values[-1] - self.values[first]) / passed_s if passed_s > 0 else None


MAGIC = b"penstock points 1\n"
HEAD_BYTES = len(MAGIC) + 8
_BLOCK = struct.Struct("<III")  # length of the rest, its CRC-32, number of points
_POINT = struct.Struct("<Iqd")
_MOST_BYTES = 4096 * _POINT.size
_MOST_AGE_S = 1.0
_MOST_NAMES = 100_000
_MOST_NAME_LENGTH = 250


class Block(NamedTuple):
    """A block of a file: the names that it declares, its points as bytes, and where it ends in the file."""

    names: list[str]
    points: memoryview
    end: int


class SeriesWriter:
    """Appends points to a file of its own, a block at a time.

    Points are written when 4,096 have come, and by the first ``add`` a second
    after the last block; whoever adds seldom calls ``flush`` each second.
    Threads may share it; a forked child may not use it.

    Args:
        path: The file. If an earlier writer left it, this one goes on behind its last whole block.

    Attributes:
        dropped: Points that a full disk did not take.

    Raises:
        BadSetting: another writer has the file.
        StoreUnusable: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.dropped = 0
        self._path = path
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}
        self._new: list[str] = []
        self._points = bytearray()
        self._oldest_s = 0.0
        with usable(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = locked_file(path, os.O_RDWR | os.O_CREAT)
            try:
                self._end = self._whole()
            except BaseException:
                os.close(self._fd)
                raise

    def add(self, name: str, value: float, time_s: float | None = None) -> None:
        """Add one point; NaN and infinities are values.

        Args:
            name: Name of the series.
            value: Any number that becomes a 64-bit float.
            time_s: Seconds since 1970, rounded to the microsecond; now, if None.

        Raises:
            BadSetting: the name cannot be one, or the value is no number.
            StoreUnusable: the disk took no points; ``dropped`` counts them.
        """
        now_s = time.time()
        time_us = round((now_s if time_s is None else time_s) * 1e6)
        with self._lock:
            number = self._numbers.get(name)
            if number is None:
                number = self._declared(name)
            try:
                # In one step: an exception out of a signal's handler leaves no half of a point.
                self._points += _POINT.pack(number, time_us, value)
            except struct.error:
                raise BadSetting(f"{name}={value!r}: a series takes numbers, 64-bit floats at most") from None
            if len(self._points) == _POINT.size:
                self._oldest_s = now_s
            # A clock that was set back counts, too.
            elif len(self._points) >= _MOST_BYTES or not 0 <= now_s - self._oldest_s < _MOST_AGE_S:
                self._write()

    def flush(self) -> None:
        """Write what was added.

        Raises:
            StoreUnusable: the disk took no points; ``dropped`` counts them.
        """
        with self._lock:
            self._write()

    def close(self) -> None:
        """Write what was added and close the file; more calls do nothing."""
        with self._lock:
            if self._fd < 0:
                return
            try:
                self._write()
            finally:
                os.close(self._fd)
                self._fd = -1

    def _whole(self) -> int:
        """Cut a torn block off the file, declare its names as known, and return where it ends."""
        os.lseek(self._fd, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self._fd), "rb") as file:
            content = file.read()
        if len(content) < HEAD_BYTES:  # new, or its writer died at once
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, MAGIC + os.urandom(8), 0)
            return HEAD_BYTES
        if not content.startswith(MAGIC):
            raise BadSetting(f"{self._path} holds no points of Penstock's: give another file")
        end = HEAD_BYTES
        for block in blocks(content):
            for name in block.names:
                self._numbers[name] = len(self._numbers)
            end = block.end
        os.ftruncate(self._fd, end)
        return end

    def _declared(self, name: str) -> int:
        check_name(name)
        if len(self._numbers) == _MOST_NAMES:
            raise BadSetting(
                f"series {name!r} would be the {_MOST_NAMES + 1:,}th of {self._path.name}: a name stands for a "
                "quantity, not for a step or a file"
            )
        self._new.append(name)
        self._numbers[name] = len(self._numbers)
        return self._numbers[name]

    def _write(self) -> None:
        if not self._points:
            return
        names = [name.encode() for name in self._new]
        declared = b"".join(len(name).to_bytes(2, "little") + name for name in names)
        body = len(names).to_bytes(2, "little") + declared + self._points
        count = len(self._points) // _POINT.size
        block = _BLOCK.pack(len(body), zlib.crc32(body), count) + body
        self._points.clear()
        try:
            with usable(self._path):
                written = 0
                while written < len(block):
                    written += os.pwrite(self._fd, memoryview(block)[written:], self._end + written)
        except BaseException:
            self.dropped += count
            with suppress(OSError):
                os.ftruncate(self._fd, self._end)
            raise
        self._end += len(block)
        self._new.clear()


def points_file(run_folder: Path, writer: str) -> Path:
    """Return where a writer's points of a run lie."""
    return run_folder / "series" / f"{writer}.points"


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a series.

    Raises:
        BadSetting: it cannot be; the message says why.
    """
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # a script gives anything
        raise BadSetting(f"series {name!r}: a name is text")
    if not name:
        why = "it is empty"
    elif len(name) > _MOST_NAME_LENGTH:
        why = f"it has {len(name):,} characters, more than {_MOST_NAME_LENGTH}"
    elif not name.isprintable():
        why = "it holds control characters"
    else:
        return
    raise BadSetting(f"{name[:_MOST_NAME_LENGTH]!r} cannot name a series: {why}")


def blocks(content: bytes, at: int = HEAD_BYTES) -> Iterator[Block]:
    """Yield the whole blocks of a file from here on, up to the first that was torn."""
    view = memoryview(content)
    while len(content) - at >= _BLOCK.size:
        length, crc, count = _BLOCK.unpack_from(content, at)
        end = at + _BLOCK.size + length
        body = view[at + _BLOCK.size : end]
        if len(body) < length or zlib.crc32(body) != crc or length < 2 + count * _POINT.size:
            return
        names: list[str] = []
        where = 2
        for _ in range(int.from_bytes(body[:2], "little")):
            size = int.from_bytes(body[where : where + 2], "little")
            names.append(bytes(body[where + 2 : where + 2 + size]).decode())
            where += 2 + size
        yield Block(names, body[length - count * _POINT.size :], end)
        at = end


def locked_file(path: Path, flags: int) -> int:
    """Open a file that nobody else writes or compacts.

    Raises:
        BadSetting: somebody does.
    """
    try:
        return taken(path, flags)
    except BlockingIOError:
        raise BadSetting(f"{path} has another writer: each writes a file of its own") from None
