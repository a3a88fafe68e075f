"""Checksums of rows: each row is compared when it is first read, or all at once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from penstock.basics.crc32 import crc32
from penstock.contracts import ByteArray
from penstock.errors import PackDamaged, ReadFailed
from penstock.sources.packed.format import (
    HEADER_BYTES,
    SUM,
    Leaf,
    Manifest,
    check_file,
    files_of,
    folder_at,
    read_manifest,
    remedy,
)
from penstock.sources.packed.plain import read_bytes

_CHUNK_BYTES = 16 << 20
_NAMED = 5


class Checksums:
    """The checksums of one leaf's rows, and which rows have been found right.

    Args:
        folder: Folder of the packed data set.
        leaf: The leaf.
        rows: Number of its rows.

    Raises:
        PackDamaged: the checksums are not those that were packed.
        ReadFailed: they cannot be read.
    """

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
        """Compare rows that were read, which lie one after the other in ``content``.

        Raises:
            PackDamaged: a row is not the one that was packed.
        """
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

    Args:
        folder: Where it lies.
        progress: Called with the bytes done and their total.

    Raises:
        BadSetting: there is no finished data set.
        PackDamaged: something is not what was packed, or cannot be read; the message has a line for each file.
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
