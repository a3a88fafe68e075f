"""Whole files in a cache's folder: fetched once, then mapped from there."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

from penstock.basics.sizes import size_text
from penstock.basics.terminal import console, printable, say
from penstock.contracts import ByteArray, Numbers
from penstock.errors import BadSetting, ReadFailed
from penstock.fingerprint.file_versions import FileVersion
from penstock.io.cache.folder import CacheFolder
from penstock.io.cache.keys import hash64, keys_of, origin_of
from penstock.io.cache.slab import Item, Slab
from penstock.io.cache.tiers import CacheLayout
from penstock.linux.fork import close_in_children

PIECE_BYTES = 8 << 20
"""A file is fetched, and compared with checksums, in pieces of this size."""
_AT_ONCE = 16

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MAP_FIXED = 0x10


class WholeFile:
    """A file that is kept whole, piece by piece, and mapped as one.

    Its pieces lie in ``slab``, which ``slab_of`` opens, of a cache of at most ``limit`` bytes. ``read`` reads a
    part of that version, by offset and size, where it lies; any thread may call it.
    """

    def __init__(
        self, slab: Slab, limit: int, path: str, version: FileVersion, read: Callable[[int, int], bytes]
    ) -> None:
        self._slab, self._limit, self._path, self._read, self._pid = slab, limit, path, read, os.getpid()
        self._origin = origin_of(version)
        self._offsets = np.arange(0, version.nbytes, PIECE_BYTES)
        self._nbytes = np.minimum(PIECE_BYTES, version.nbytes - self._offsets)
        self._keys = keys_of([hash64(path)] * len(self._offsets), self._offsets, self._nbytes)
        self._is_checked = np.zeros(len(self._offsets), np.bool_)
        if self._missing():
            with slab.filled_alone():
                self._fetch(self._missing())
        self.mapped = mmap.mmap(-1, version.nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)
        """All of the file."""
        self._bytes: ByteArray = np.frombuffer(self.mapped, np.uint8)
        self._map()

    def check(self, starts: Numbers, nbytes: int | Numbers, *, again: bool = False) -> None:
        """Compare pieces with their checksums that hold these parts, once; what is damaged is fetched again.

        With ``again``, the pieces are compared once more when they are needed next.
        """
        if self._is_checked.all():
            return
        edges = np.zeros(len(self._offsets) + 1, np.int64)
        np.add.at(edges, starts // PIECE_BYTES, 1)
        np.add.at(edges, (starts + nbytes - 1) // PIECE_BYTES + 1, -1)
        for piece in np.flatnonzero((np.cumsum(edges[:-1]) > 0) & ~self._is_checked).tolist():
            offset, size = int(self._offsets[piece]), int(self._nbytes[piece])
            if not self._slab.is_whole(self._mapped_rows[piece], self._bytes[offset : offset + size]):
                say(f"{printable(self._path)}, at byte {offset:,}: the cache is damaged, so this is read again")
                content = self._read(offset, size)
                self._write(offset, content)
                if os.getpid() == self._pid and not self._slab.full:  # a forked child has no slab
                    self._slab.append([self._item(piece, content)])
            self._is_checked[piece] = not again

    def _rows(self) -> list[int]:
        """Return the record of each piece; -1 for those that are not kept of this version."""
        self._slab.refresh()
        rows: list[int] = self._slab.find(self._keys).tolist()
        end = os.fstat(self._slab.data_fd).st_size  # it may have been cut by a crash of the machine
        return [
            row
            if row >= 0 and self._slab.origin(row) == self._origin and sum(self._slab.place(row)) <= end
            else -1
            for row in rows
        ]

    def _missing(self) -> list[int]:
        return [piece for piece, row in enumerate(self._rows()) if row < 0]

    def _fetch(self, pieces: Sequence[int]) -> None:
        """Keep pieces, in their order."""
        if not pieces:  # another process has fetched them meanwhile
            return
        if self._slab.full:
            raise self._no_room(self._slab.full)
        shown = console(stderr=True)
        total = int(self._nbytes[list(pieces)].sum())
        held = os.fstat(self._slab.data_fd).st_size
        if held + total > self._limit:  # before anything of others is dropped for it
            beside = f", and {size_text(held)} of this folder's files lie there" if held else ""
            raise self._no_room(f"it holds {size_text(self._limit)}{beside}")
        say(f"{printable(self._path)}: {size_text(total)} are fetched into the cache")
        columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
        with (
            ThreadPoolExecutor(_AT_ONCE) as pool,
            Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal) as progress,
        ):
            task = progress.add_task("fetched", total=total)
            coming: deque[tuple[int, Future[bytes]]] = deque()
            try:
                for piece in pieces:
                    if len(coming) >= _AT_ONCE:
                        progress.advance(task, self._keep(*coming.popleft()))
                    offset, nbytes = int(self._offsets[piece]), int(self._nbytes[piece])
                    coming.append((piece, pool.submit(self._read, offset, nbytes)))
                while coming:
                    progress.advance(task, self._keep(*coming.popleft()))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _keep(self, piece: int, content: Future[bytes]) -> int:
        if not self._slab.append([self._item(piece, content.result())]):
            raise self._no_room(self._slab.full)
        return int(self._nbytes[piece])

    def _no_room(self, why: str) -> BadSetting:
        nbytes = size_text(int(self._nbytes.sum()))
        return BadSetting(
            f"{self._path} ({nbytes}) cannot be kept whole in the cache: {why}. Give it a larger size, or "
            "drop what is not needed any more, such as files that were replaced (penstock cache drop)"
        )

    def _item(self, piece: int, content: bytes) -> Item:
        return Item(int(self._keys[piece]), self._origin, content)

    def _map(self) -> None:
        """Map the pieces behind each other, wherever they lie in the slab."""
        self._mapped_rows, fd = self._rows(), self._slab.data_fd
        if min(self._mapped_rows) < 0:
            raise ReadFailed(
                f"{self._path} was replaced while it was fetched: another process has kept its new version. Start "
                "again",
                self._path,
            )
        for offset, row in zip(self._offsets.tolist(), self._mapped_rows, strict=True):
            lies, nbytes = self._slab.place(row)
            address = self._bytes.ctypes.data + offset
            if _libc.mmap(address, nbytes, mmap.PROT_READ, mmap.MAP_PRIVATE | _MAP_FIXED, fd, lies) != address:
                raise _failed()

    def _write(self, offset: int, content: bytes) -> None:
        """Write to this process's own copy of what is mapped."""
        address = self._bytes.ctypes.data + offset
        if _libc.mprotect(address, len(content), mmap.PROT_READ | mmap.PROT_WRITE):
            raise _failed()
        ctypes.memmove(address, content, len(content))


def slab_of(layout: CacheLayout) -> Slab:
    """Open the slab of a data set whose files are kept whole."""
    folder = CacheFolder(layout.folder, layout.limit, shared=layout.shared)
    slab = folder.open(layout.root, layout.kind)
    if slab is None:
        raise BadSetting(f"nothing can be kept in {layout.folder}: {folder.unused}. Name a folder on a local disk")
    close_in_children(slab)
    return slab


def _failed() -> OSError:
    error = ctypes.get_errno()
    return OSError(error, os.strerror(error))
