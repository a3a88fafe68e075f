"""The records of a cycle in memory that workers see: a task says where they lie, and does not carry them."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Iterator, Sequence
from io import FileIO
from typing import Any

import numpy as np

from penstock.contracts import Ids
from penstock.errors import SourceError
from penstock.linux.files import memory_file
from penstock.linux.fork import close_in_children


class SharedRecords(Sequence[bytes]):
    """Records that lie in a file in memory, which has the same descriptor in all processes that use it."""

    def __init__(self, fd: int, starts: Ids, ends: Ids) -> None:
        self._fd, self._starts, self._ends = fd, starts, ends

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, rows: Any) -> Any:
        if not isinstance(rows, int):
            return self.picked(rows)
        return self.mapped(None)[int(self._starts[rows]) : int(self._ends[rows])]

    def picked(self, rows: slice | Ids) -> SharedRecords:
        """Return where some of them lie."""
        return SharedRecords(self._fd, self._starts[rows], self._ends[rows])

    def mapped(self, before: mmap.mmap | None) -> mmap.mmap:
        """Return the file's memory: what was mapped before, if that reaches to the last of these, else anew."""
        if before is not None and len(before) >= self._ends.max():
            return before
        return mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ)

    def lying_in(self, memory: mmap.mmap) -> Iterator[bytes]:
        """Yield all records, of the file's memory."""
        return map(memory.__getitem__, map(slice, self._starts.tolist(), self._ends.tolist()))


class CycleMemory:
    """A file in memory that holds the records of one cycle, and then those of the next."""

    def __init__(self) -> None:
        self.file: FileIO = memory_file("penstock-stream")
        close_in_children(self.file)
        weakref.finalize(self, self.file.close)

    def filled(self, records: Sequence[bytes]) -> SharedRecords:
        """Hold these records in place of those that were there, which nobody reads any more."""
        try:
            self.file.truncate(0)
            with open(self.file.fileno(), "wb", 1 << 20, closefd=False) as file:
                file.seek(0)
                file.writelines(records)
                file.write(b"\n")  # an empty file cannot be mapped
        except OSError as error:
            raise SourceError(
                f"{sum(map(len, records)):,} bytes of a cycle cannot lie in memory ({error.strerror}): "
                "make cycles smaller (cycle=), or allow larger files (ulimit -f)"
            ) from None
        ends = np.cumsum(np.fromiter(map(len, records), np.int64, len(records)))
        return SharedRecords(self.file.fileno(), np.concatenate([[0], ends])[: len(ends)], ends)
