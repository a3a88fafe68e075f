"""A slab: a file of records that only grows, and an index whose frames commit them.

A frame is written after the bytes that it describes, and has a CRC of its own: what a crash leaves is no frame.
Bytes that were committed are never written to again, so who reads needs no lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from penstock.basics.crc32 import crc32
from penstock.contracts import ByteArray, Ids
from penstock.io.cache.keys import Keys, ReadAhead
from penstock.io.files import DIRECT_ALIGNMENT, direct_aligned
from penstock.linux.files import lock_file

_FRAME = struct.Struct("<4sII")
"""Mark, number of records, and CRC of the records that follow."""
_MARK = b"PSC1"
RECORD = np.dtype(
    [
        ("key", "<u8"),
        ("origin", "<u8"),
        ("offset", "<u8"),
        ("nbytes", "<u4"),
        ("height", "<u2"),
        ("width", "<u2"),
        ("crc", "<u4"),
    ]
)
_MOST_RECENT = 1024
_INDEX_BYTES = 64 << 20
_DAMAGED = "its files were damaged; penstock cache drop deletes them"


class Item(NamedTuple):
    """What is to be kept."""

    key: int  # what it is found by
    origin: int  # version of what it was read from
    content: bytes | ByteArray  # its bytes, in one piece
    height: int = 0  # rows of its pixels; 0 if it has none
    width: int = 0  # columns of its pixels

    @property
    def nbytes(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.nbytes

    @property
    def span(self) -> int:
        """Bytes that it takes in the file."""
        return direct_aligned(self.nbytes)


class Allowance(NamedTuple):
    """How many bytes may be added, and if none, why."""

    nbytes: int
    full: str


class Slab:
    """Records of one data set, which several processes read and add to. It closes its descriptors with itself."""

    def __init__(
        self,
        data: int,  # descriptor of the file of records
        index: int,  # descriptor of its index
        lock: int | None,  # descriptor locked by who adds, opened by this process itself; None if nothing is added
        room: Callable[[int], Allowance],  # returns, under the lock, how many of the bytes asked for may be added
        direct: int | None = None,  # the file of records under O_DIRECT; None to read through ``data``
        held: int | None = None,  # descriptor whose lock marks this slab as in use
        path: str | None = None,
    ) -> None:
        self.data_fd, self._index, self._lock, self._room = data, index, lock, room
        self._fds = [fd for fd in (data, index, lock, direct, held) if fd is not None]
        self.path = path  # path of the file of records; None if it has none
        self._parsed = 0
        self.records: npt.NDArray[np.void] = np.zeros(0, RECORD)
        """All records; later ones replace earlier ones with the same key."""
        self._grown = self.records
        self._keys: Keys = np.zeros(0, np.uint64)  # sorted
        self._rows = np.zeros(0, np.int64)  # record of each
        self._recent: dict[int, int] = {}  # those not sorted yet
        self._usable = np.ones(0, np.bool_)
        self._pieces = ReadAhead(data if direct is None else direct, direct=direct is not None)
        self.full = "" if lock is not None else "it may only be read"
        """Why nothing is added any more; empty as long as there is room."""
        weakref.finalize(self, _close, self._fds)
        self.refresh()
        self._check_size()

    @property
    def is_damaged(self) -> bool:
        """Whether its index ends where it was damaged; what came after that is not found."""
        return self.full == _DAMAGED

    @property
    def is_worn_out(self) -> bool:
        """Whether it is damaged, or most of its records were replaced by later ones."""
        return self.is_damaged or len(np.unique(self.records["key"])) < len(self.records) // 2

    def refresh(self) -> None:
        """Learn of the records that were added since."""
        while os.fstat(self._index).st_size > self._parsed and self._learn():
            pass

    def _learn(self) -> bool:
        """Learn of some more records; return whether there were any."""
        tail, at = os.pread(self._index, _INDEX_BYTES, self._parsed), 0
        found: list[npt.NDArray[np.void]] = []
        while len(tail) - at >= _FRAME.size:
            mark, count, crc = _FRAME.unpack_from(tail, at)
            body = tail[at + _FRAME.size : at + _FRAME.size + count * RECORD.itemsize]
            if mark == _MARK and len(body) < count * RECORD.itemsize:  # it is being written, or never was
                break
            if mark != _MARK or crc32(body) != crc:
                self.full = _DAMAGED
                break
            found.append(np.frombuffer(body, RECORD))
            at += _FRAME.size + len(body)
        self._parsed += at
        if found:
            first, last = len(self.records), len(self.records) + sum(map(len, found))
            if last > len(self._grown):
                self._grown = np.concatenate([self.records, np.zeros(2 * last, RECORD)])
                self._usable = np.concatenate([self._usable[:first], np.ones(2 * last, np.bool_)])
            np.concatenate(found, out=self._grown[first:last])
            self.records = self._grown[:last]
            keys: list[int] = self.records["key"][first:].tolist()
            self._recent.update(zip(keys, range(first, len(self.records)), strict=True))
            if len(self._recent) > max(_MOST_RECENT, len(self._keys) // 4):
                self._sort()
        return bool(found)

    def find(self, keys: Keys) -> Ids:
        """Return the number of each key's record; -1 for none."""
        rows = np.full(len(keys), -1, np.int64)
        if len(self._keys):
            last = np.searchsorted(self._keys, keys, side="right") - 1
            same = (last >= 0) & (self._keys[last] == keys)
            rows[same] = self._rows[last[same]]
        if self._recent:
            recent = [self._recent.get(key, -1) for key in keys.tolist()]
            rows = np.maximum(rows, np.array(recent, np.int64))
        if len(self.records):
            rows[~self._usable[rows]] = -1
        return rows

    def origin(self, row: int) -> int:
        """Return the version of what a record was read from."""
        return int(self.records["origin"][row])

    def is_of(self, row: int, origin: int) -> bool:
        """Whether a record was read from this version of its origin; one that was not is found no more."""
        self._usable[row] = self._usable[row] and self.origin(row) == origin
        return bool(self._usable[row])

    def place(self, row: int) -> tuple[int, int]:
        """Return where a record's bytes lie in the file: offset and size."""
        record = self.records[row]
        return int(record["offset"]), int(record["nbytes"])

    def shape(self, row: int) -> tuple[int, int]:
        """Return height and width of a record's pixels; 0 and 0 if it has none."""
        record = self.records[row]
        return int(record["height"]), int(record["width"])

    def expect(self, rows: Iterable[int]) -> None:
        """Read records ahead, which ``read`` is asked for in this order, after those that were expected before."""
        self._pieces.expect(map(self.place, rows))

    def forget(self, rows: Iterable[int]) -> None:
        """Forget expected records that were not read."""
        self._pieces.forget({self.place(row)[0] for row in rows})

    def read(self, row: int) -> ByteArray | None:
        """Return a record's bytes, which the next call reuses; None if they are not those that were kept."""
        content = self._pieces.read(*self.place(row))
        if content is None:
            self._usable[row] = False
        return content if content is not None and self.is_whole(row, content) else None

    def is_whole(self, row: int, content: ByteArray) -> bool:
        """Whether a record's bytes are those that were kept; if not, it is found no more."""
        if crc32(content) == int(self.records["crc"][row]):
            return True
        self._usable[row] = False
        return False

    def append(self, items: Sequence[Item]) -> int:
        """Keep items for which there is room, and which nobody has kept meanwhile; return how many.

        It is safe to be killed at any point: at worst the bytes lie there without a record.
        """
        assert self._lock is not None
        crcs = {item.key: crc32(item.content) for item in items}
        with self._locked(self._lock):
            self._cut()
            end = os.fstat(self.data_fd).st_size
            self._check_size()
            if self.path is not None and not os.fstat(self.data_fd).st_nlink:
                self.full = "its files were deleted"
            if self.full:
                return 0
            items = self._new(items)
            # One page more: what lies there may end within one.
            wanted = sum(item.span + RECORD.itemsize for item in items) + _FRAME.size + DIRECT_ALIGNMENT
            room = self._room(wanted)
            chosen: list[Item] = []
            offsets: list[int] = []
            at = direct_aligned(end)
            for item in items:
                adds = at + item.span - end + _FRAME.size + (len(chosen) + 1) * RECORD.itemsize
                if adds <= room.nbytes:
                    chosen.append(item)
                    offsets.append(at)
                    at += item.span
            left = room.nbytes - (at - end)
            if len(chosen) < len(items) and left < np.median([item.span for item in items]):
                self.full = room.full
            if not chosen:
                return 0
            try:
                self._write(chosen, direct_aligned(end))
                self._commit(chosen, offsets, crcs)
            except OSError as error:
                os.ftruncate(self.data_fd, end)
                self.full = f"its disk gives no more room ({error.strerror})"
                return 0
            self.refresh()
            return len(chosen)

    def filled_alone(self) -> AbstractContextManager[None]:
        """Wait until no other process fills this slab, and let others wait."""
        return self._locked(self._index)

    def close(self) -> None:
        _close(self._fds)

    def _check_size(self) -> None:
        if len(self.records) and os.fstat(self.data_fd).st_size < sum(self.place(-1)):
            self.full = _DAMAGED

    def _new(self, items: Sequence[Item]) -> list[Item]:
        once = {item.key: item for item in items}
        rows = self.find(np.array(list(once), np.uint64)).tolist()
        return [
            item
            for item, row in zip(once.values(), rows, strict=True)
            if row < 0 or self.origin(row) != item.origin
        ]

    def _write(self, items: Sequence[Item], at: int) -> None:
        parts: list[memoryview] = []
        for item in items:
            parts.append(memoryview(cast("Any", item.content)).cast("B"))
            parts.append(memoryview(bytes(item.span - item.nbytes)))
        parts = [part for part in parts if len(part)]
        for first in range(0, len(parts), os.sysconf("SC_IOV_MAX")):
            some = parts[first : first + os.sysconf("SC_IOV_MAX")]
            wanted = sum(map(len, some))
            if os.pwritev(self.data_fd, some, at) < wanted:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            at += wanted

    def _commit(self, items: Sequence[Item], offsets: Sequence[int], crcs: Mapping[int, int]) -> None:
        rows = [
            (item.key, item.origin, offset, item.nbytes, item.height, item.width, crcs[item.key])
            for item, offset in zip(items, offsets, strict=True)
        ]
        body = np.array(rows, RECORD).tobytes()
        frame = _FRAME.pack(_MARK, len(rows), crc32(body)) + body
        if os.pwrite(self._index, frame, self._parsed) < len(frame):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _cut(self) -> None:
        """Load what was added, and cut off what a dead process left half-written."""
        self.refresh()
        if self.full:
            return
        if os.fstat(self._index).st_size > self._parsed:
            os.ftruncate(self._index, self._parsed)
        end = direct_aligned(sum(self.place(-1))) if len(self.records) else 0
        if os.fstat(self.data_fd).st_size > end:
            os.ftruncate(self.data_fd, end)

    def _sort(self) -> None:
        keys = self.records["key"]
        self._rows = np.argsort(keys, kind="stable").astype(np.int64)
        self._keys = keys[self._rows]
        self._recent.clear()

    @contextmanager
    def _locked(self, lock: int) -> Generator[None]:
        lock_file(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())
