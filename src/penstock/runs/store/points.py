"""Series, and files of points to which one writer appends, a block at a time.

Each block has a header with a checksum of its own, which says what the block is, and where. So a reader finds the
next whole block behind a damaged one, and knows how many points are gone between the two.
"""

from __future__ import annotations

import math
import os
import re
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from penstock.errors import BadSetting, StoreUnusable
from penstock.linux.files import taken
from penstock.runs.store.folder import usable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_MARK = b"\xffPSB"  # no text has its first byte
_FIELDS = Struct("<4sIIIII")  # the mark, the body's bytes and CRC-32, then as in Block
_HEADER_BYTES = _FIELDS.size + 4
_OF_PENSTOCK = re.compile(rb"penstock [a-z]+ \d+\n")
POINT_BYTES = 20


class Block(NamedTuple):
    """A whole block of a file; the last one has no body if what it stands for is gone."""

    points: int  # in its body
    place: int  # how many names, or blocks, were declared before it
    before: int  # how many points were written before it
    body: memoryview
    end: int  # where it ends in the file
    lost: int  # points that are gone between the whole block before it and this one


def block_of(body: bytes, points: int, place: int, before: int, at: int) -> bytes:
    """Return a block that is whole at one place of a file, and nowhere else."""
    fields = _FIELDS.pack(_MARK, len(body), crc32(body), points, place, before)
    return fields + crc32(fields, at).to_bytes(4, "little") + body


def blocks(content: bytes, at: int, offset: int = 0) -> Iterator[Block]:
    """Yield the whole blocks of a file's content from an offset on, the first at ``at`` or behind it.

    A last one without a body stands for points that are gone behind them. A block whose writer was killed, or
    zeros in its place after a loss of power, do not count as such.
    """
    view = memoryview(content)
    before, known, rest = 0, 0, at
    while (at := _next(content, at, offset)) < len(content):
        _, length, crc, points, place, earlier = _FIELDS.unpack_from(content, at)
        end = at + _HEADER_BYTES + length
        body = view[at + _HEADER_BYTES : end]
        if len(body) == length and crc32(body) == crc:
            yield Block(points, place, earlier, body, offset + end, max(0, earlier - before))
            before = known = earlier + points
            rest = at = end
        else:
            known = earlier + points * (end <= len(content))
            rest, at = min(end, len(content)), at + 1
    left = len(content) - rest
    if left >= _HEADER_BYTES and content.count(0, rest) < left:
        known += max(1, (left - _HEADER_BYTES) // POINT_BYTES)
    if known > before:
        yield Block(0, 0, known, view[:0], offset + len(content), known - before)


def refuse_others(path: Path, content: bytes, magic: bytes, found: bool) -> None:
    """Refuse a file of which nothing was found because another Penstock has written it."""
    if not found and not content.startswith(magic) and (other := _OF_PENSTOCK.match(content)):
        raise StoreUnusable(
            f"{path} has the format {other[0].decode().strip()!r}, this Penstock reads "
            f"{magic.decode().strip()!r} only: read it with the Penstock that wrote it, or remove the run"
        )


def _next(content: bytes, at: int, offset: int) -> int:
    """Return where the next whole header begins; the length of the content if there is none."""
    while 0 <= (at := content.find(_MARK, at)) <= len(content) - _HEADER_BYTES:
        fields = at + _FIELDS.size
        if crc32(content[at:fields], offset + at) == int.from_bytes(content[fields : fields + 4], "little"):
            return at
        at += 1
    return len(content)


class Series(NamedTuple):
    """Points of one name, oldest first."""

    times_s: NDArray[np.float64]  # seconds since 1970, to the microsecond
    values: NDArray[np.float64]  # what was measured; NaN and infinities are values

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

        Only the last ``recent_s`` count, but the newest two points in any case.
        """
        if len(self.times_s) < 2:
            return None
        first = min(int((self.times_s < self.times_s[-1] - recent_s).sum()), len(self.times_s) - 2)
        passed_s = float(self.times_s[-1] - self.times_s[first])
        return float(self.values[-1] - self.values[first]) / passed_s if passed_s > 0 else None


MAGIC = b"penstock points 2\n"
HEAD_BYTES = len(MAGIC) + 12
_POINT = struct.Struct("<Iqd")
_MOST_BYTES = 4096 * POINT_BYTES
_MOST_AGE_S = 1.0
_MOST_NAMES = 100_000
_MOST_NAME_LENGTH = 250


class SeriesWriter:
    """Appends points to a file of its own, a block at a time.

    Points are written when 4,096 have come, and by the first ``add`` a second
    after the last block; whoever adds seldom calls ``flush`` each second.
    Threads may share it; a forked child may not use it.
    """

    def __init__(self, path: Path) -> None:
        self.dropped = 0  # points that a full disk did not take
        self._path = path
        """The file. If an earlier writer left it, this one goes on behind it; only a torn end is overwritten."""
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}
        self._declared = self._before = 0  # names and points in the file
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
        """Add one point, now or at ``time_s`` since 1970, to the microsecond; NaN and infinities are values."""
        now_s = time.time()
        time_us = round((now_s if time_s is None else time_s) * 1e6)
        with self._lock:
            number = self._numbers.get(name)
            if number is None:
                number = self.declare(name)
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
        """Write what was added."""
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

    def declare(self, name: str) -> int:
        """Return the number of a name that has none yet."""
        check_name(name)
        if self._declared + len(self._new) == _MOST_NAMES:
            raise BadSetting(
                f"series {name!r} would be the {_MOST_NAMES + 1:,}th of {self._path.name}: a name stands for a "
                "quantity, not for a step or a file"
            )
        self._numbers[name] = self._declared + len(self._new)
        self._new.append(name)
        return self._numbers[name]

    def _whole(self) -> int:
        """Cut a torn block off the file, declare its names as known, and return where it ends."""
        os.lseek(self._fd, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self._fd), "rb") as file:
            content = file.read()
        if len(content) < HEAD_BYTES:  # new, or its writer died at once
            os.ftruncate(self._fd, 0)
            key = os.urandom(8)
            os.pwrite(self._fd, MAGIC + key + crc32(key).to_bytes(4, "little"), 0)
            return HEAD_BYTES
        end, names = HEAD_BYTES, list[str]()
        for block in points_in(content, names):
            end, self._before = block.end, block.before + block.points
        refuse_others(self._path, content, MAGIC, bool(names))
        if not names and not content.startswith(MAGIC):
            raise BadSetting(f"{self._path} holds no points of Penstock's: give another file")
        self._declared = len(names)
        self._numbers = {name: number for number, name in enumerate(names) if name}
        os.ftruncate(self._fd, end)
        return end

    def _write(self) -> None:
        if not self._points:
            return
        names = [name.encode() for name in self._new]
        declared = b"".join(len(name).to_bytes(2, "little") + name for name in names)
        body = len(names).to_bytes(2, "little") + declared + self._points
        count = len(self._points) // POINT_BYTES
        block = block_of(body, count, self._declared, self._before, self._end)
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
        self._before += count
        self._declared += len(self._new)
        self._new.clear()


def points_file(run_folder: Path, writer: str) -> Path:
    """Return where a writer's points of a run lie."""
    return run_folder / "series" / f"{writer}.points"


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a series."""
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


def key_of(content: bytes) -> bytes:
    """Return the random bytes that tell a file of points from others; none if they are damaged."""
    key = content[len(MAGIC) : HEAD_BYTES - 4]
    return key if crc32(key).to_bytes(4, "little") == content[HEAD_BYTES - 4 : HEAD_BYTES] else b""


def points_in(content: bytes, names: list[str], at: int = HEAD_BYTES, offset: int = 0) -> Iterator[Block]:
    """Yield blocks as ``blocks`` does, with points alone as bodies; add the names that they declare to ``names``.

    Their places are their numbers; "" stands for those whose block is gone.
    """
    for block in blocks(content, at, offset):
        names += [""] * (block.place - len(names))
        where = 2
        for _ in range(int.from_bytes(block.body[:2], "little")):
            size = int.from_bytes(block.body[where : where + 2], "little")
            names.append(bytes(block.body[where + 2 : where + 2 + size]).decode())
            where += 2 + size
        yield block._replace(body=block.body[where:])


def locked_file(path: Path, flags: int) -> int:
    """Open a file that nobody else writes or compacts."""
    try:
        return taken(path, flags)
    except BlockingIOError:
        raise BadSetting(f"{path} has another writer: each writes a file of its own") from None
