"""An open packed data set: leaves in memory, leaves that are read, changed files, and the checksums of rows."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from penstock.basics.crc32 import crc32
from penstock.contracts import ByteArray, Ids
from penstock.errors import PackDamaged, ReadFailed
from penstock.io.files import DIRECT_ALIGNMENT
from penstock.memory.room import ALIGNMENT, aligned
from penstock.sources.packed.format import (
    HEADER_BYTES,
    SUM,
    Leaf,
    Manifest,
    check_file,
    files_of,
    folder_at,
    read_bytes,
    read_manifest,
    read_set,
    remedy,
)

_CHUNK_BYTES = 16 << 20
_NAMED = 5


class Checksums:
    """The checksums of one leaf's rows in a packed data set, and which rows have been found right."""

    def __init__(self, folder: Path, leaf: Leaf, rows: int) -> None:
        path = folder / leaf.checksums
        content = read_rows(path, SUM.itemsize, 0, rows)
        if (found := crc32(content)) != leaf.checksums_crc32:
            raise PackDamaged(
                f"{path} is damaged: its CRC-32 is {found:08x}, and {leaf.checksums_crc32:08x} was packed. "
                f"{remedy(folder)}"
            )
        self._path = folder / leaf.file
        self._row_bytes = leaf.row_bytes
        self._sums = content.reshape(-1).view(SUM)
        self._is_new = np.ones(rows, bool)

    def check(self, rows: Sequence[int], content: ByteArray) -> None:
        """Compare rows that were read, which lie one after the other in ``content``."""
        for row, found in self.wrong(rows, content):
            offset = HEADER_BYTES + row * self._row_bytes
            raise PackDamaged(
                f"row {row:,} of {self._path} ({self._row_bytes:,} bytes at {offset:,}) is damaged: its "
                f"CRC-32 is {found:08x}, and {self._sums[row]:08x} was packed. {remedy(self._path.parent)}"
            )
        self._is_new[rows] = False

    def wrong(self, rows: Sequence[int], content: ByteArray) -> list[tuple[int, int]]:
        """Return each row that differs from what was packed, and its CRC-32; skip rows found right before."""
        size = self._row_bytes
        return [
            (row, found)
            for i, row in enumerate(rows)
            if self._is_new[row] and (found := crc32(content[i * size : (i + 1) * size])) != self._sums[row]
        ]


def check(folder: str | Path, progress: Callable[[int, int], None] | None = None) -> Manifest:
    """Read a whole packed data set: compare every checksum, and every header with the manifest.

    ``progress`` is called with the bytes done and their total.
    """
    folder = folder_at(folder)
    manifest = read_manifest(folder)
    found: list[str] = []
    for path, dtype, shape in files_of(folder, manifest):
        with _noting(found, folder):
            check_file(path, dtype, shape)
    done = 0
    for leaf in manifest.leaves:
        damaged: list[int] = []
        with _noting(found, folder):
            sums = Checksums(folder, leaf, manifest.rows)
            step = max(1, _CHUNK_BYTES // max(1, leaf.row_bytes))
            for start in range(0, manifest.rows, step):
                rows = range(start, min(start + step, manifest.rows))
                damaged += _damaged(folder / leaf.file, leaf.row_bytes, sums, rows)
                done += len(rows) * leaf.row_bytes
                if progress is not None:
                    progress(done, manifest.nbytes)
        if damaged:
            few = ", ".join(f"{row:,}" for row in damaged[:_NAMED]) + ", ..." * (len(damaged) > _NAMED)
            of = f"{len(damaged):,} of {manifest.rows:,} rows of {folder / leaf.file}"
            found.append(f"{of} are damaged or cannot be read: {few}")
    if found:
        raise PackDamaged("\n".join([*dict.fromkeys(found), remedy(folder)]))
    return manifest


@contextmanager
def _noting(found: list[str], folder: Path) -> Generator[None]:
    """Note an error, so that the check goes on."""
    try:
        yield
    except FileNotFoundError as error:
        found.append(f"{error.filename} is missing")
    except (PackDamaged, ReadFailed) as error:
        found.append(str(error).removesuffix(f". {remedy(folder)}"))


def _damaged(path: Path, row_bytes: int, sums: Checksums, rows: range) -> list[int]:
    """Return those of ``rows`` that differ from what was packed, are missing, or cannot be read."""
    try:
        content = read_bytes(path, HEADER_BYTES + rows.start * row_bytes, len(rows) * row_bytes)
    except ReadFailed:
        if len(rows) == 1:
            return [*rows]
        half = len(rows) // 2
        return [row for part in (rows[:half], rows[half:]) for row in _damaged(path, row_bytes, sums, part)]
    there = content.nbytes // row_bytes if row_bytes else len(rows)
    return [*(row for row, _ in sums.wrong(rows[:there], content)), *rows[there:]]


def read_rows(path: Path, row_bytes: int, start: int, rows: int) -> ByteArray:
    """Read rows of a file through the page cache, as an array of (rows, bytes)."""
    try:
        content = read_bytes(path, HEADER_BYTES + start * row_bytes, rows * row_bytes)
    except FileNotFoundError:
        raise PackDamaged(f"{path} is missing. {remedy(path.parent)}") from None
    if content.nbytes != rows * row_bytes:
        missing = rows * row_bytes - content.nbytes
        raise PackDamaged(f"{path} ends {missing:,} bytes early: it was cut short. {remedy(path.parent)}")
    return content.reshape(rows, row_bytes)


_SMALL_ROW_BYTES = 4096
_EXTENT_BYTES = 1 << 20


class PackedFiles:
    """The files of a packed data set.

    Leaves of small rows (labels, thumbnails) are held in memory, up to ``keep_bytes``, as reading such rows one by
    one is slow; others are read when they are needed.
    """

    def __init__(self, folder: Path, *, keep_bytes: int, verify: bool, runs: bool = True) -> None:
        self._run_bytes = _EXTENT_BYTES if runs else 0  # rows that lie side by side are read at once
        self.manifest = manifest = read_set(folder)
        self.row_bytes = [leaf.row_bytes for leaf in manifest.leaves]
        self._folder = folder  # where the files lie
        self._verify = verify  # compare each row's checksum the first time it is read
        self._paths = [folder / leaf.file for leaf in manifest.leaves]
        self._identities = [_status(path) for path in self._paths]
        self._sums: list[Checksums] = []
        self._contents: dict[int, ByteArray] = {}
        in_memory: list[int] = []
        for i in sorted(range(len(self.row_bytes)), key=self.row_bytes.__getitem__):
            keep_bytes -= self.row_bytes[i] * manifest.rows
            if self.row_bytes[i] < _SMALL_ROW_BYTES and keep_bytes >= 0:
                in_memory.append(i)
        self.in_memory = sorted(in_memory)
        self.read = [i for i in range(len(self.row_bytes)) if i not in in_memory]

    @property
    def paths_read(self) -> list[str]:
        return [str(self._paths[i]) for i in self.read]

    def load(self) -> None:
        """Read the leaves that are held in memory, once."""
        rows = self.manifest.rows
        if self._verify and not self._sums:
            self._sums = [Checksums(self._folder, leaf, rows) for leaf in self.manifest.leaves]
        for i in self.in_memory:
            if i not in self._contents:
                content = read_rows(self._paths[i], self.row_bytes[i], 0, rows)
                self.check(i, range(rows), content.reshape(-1))
                self._contents[i] = content

    def gather(self, leaf: int, indices: Ids, to: ByteArray) -> None:
        """Copy rows of a leaf that is held in memory."""
        if to.nbytes:
            np.take(self._contents[leaf], indices, 0, to.reshape(len(indices), -1), "clip")

    def check(self, leaf: int, rows: Sequence[int], content: ByteArray) -> None:
        """Compare rows of a leaf that were read with their checksums, if they are new and ``verify`` is set."""
        if self._sums:
            self._sums[leaf].check(rows, content)

    def check_unchanged(self) -> None:
        """Raise PackDamaged if a file has been replaced or written to since it was opened."""
        for path, before in zip(self._paths, self._identities, strict=True):
            if change := _change(before, _status(path)):
                raise PackDamaged(f"{path} {change}")

    def runs(self, leaf: int, indices: Ids) -> tuple[Ids, Ids]:
        """Find runs of a block's rows that can be read at once; return where each begins, and its rows."""
        most = max(1, self._run_bytes // self.row_bytes[leaf])
        at = np.arange(len(indices))
        breaks = np.diff(indices, prepend=indices[0] - 2) != 1
        within = at - np.maximum.accumulate(np.where(breaks, at, 0))
        starts = np.flatnonzero(within % most == 0)
        return starts, np.diff(starts, append=len(indices))

    def offsets(self, leaf: int, rows: Ids) -> Ids:
        """Return where rows begin in the leaf's file."""
        return HEADER_BYTES + rows * self.row_bytes[leaf]

    def places(self, start: int, rows: int) -> list[int]:
        """Return where the leaves of a block lie in memory, in a slot that begins at ``start``.

        Leaves that are read are aligned for direct I/O, so that no reader needs a
        buffer in between where the rows' size allows that.
        """
        places: list[int] = []
        for i, size in enumerate(self.row_bytes):
            if i in self.read:
                start += -start % DIRECT_ALIGNMENT
            places.append(start)
            start += aligned(size * rows)
        return places

    def slot_bytes(self, rows: int) -> int:
        """Return the bytes of a slot that fits a block of ``rows`` rows, wherever it begins."""
        gaps = len(self.read) * (DIRECT_ALIGNMENT - ALIGNMENT)
        return gaps + sum(aligned(size * rows) for size in self.row_bytes)


def _status(path: Path) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise PackDamaged(f"{path} cannot be read any more: {error.strerror}. {remedy(path.parent)}") from None


def _change(before: os.stat_result, now: os.stat_result) -> str:
    """Return what has happened to a file, and what to do; empty if nothing has."""
    if (before.st_dev, before.st_ino) != (now.st_dev, now.st_ino):
        what = "was replaced"
    elif before.st_size != now.st_size:
        how = "cut short" if now.st_size < before.st_size else "made longer"
        what = f"was {how}, from {before.st_size:,} to {now.st_size:,} bytes,"
    elif before.st_mtime_ns != now.st_mtime_ns:
        what = "was written to"
    elif before.st_ctime_ns != now.st_ctime_ns:
        # A writer can set the modification time back, but not the change time.
        return (
            f"was changed while it was being read: {_more(before, now)}. If nobody has written to it, start the "
            "feed again; its rows are compared with their checksums then"
        )
    else:
        return ""
    return (
        f"{what} while it was being read: what came of it may be mixed. Pack into a new folder, and start the "
        "feed again"
    )


def _more(before: os.stat_result, now: os.stat_result) -> str:
    """Return what changed where the modification time did not."""
    parts = {
        "its permissions": (stat.filemode(before.st_mode), stat.filemode(now.st_mode)),
        "its owner": (f"{before.st_uid}:{before.st_gid}", f"{now.st_uid}:{now.st_gid}"),
        "the number of its hard links": (str(before.st_nlink), str(now.st_nlink)),
    }
    found = [f"{name} from {one} to {other}" for name, (one, other) in parts.items() if one != other]
    return ", ".join(found) or "it was renamed, or written to with its time of writing set back"
