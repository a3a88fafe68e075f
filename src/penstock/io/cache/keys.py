"""Keys of samples (hashes, which also decide who keeps them, and where), and pieces of a file to read ahead."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections import deque
from collections.abc import Container, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

import numpy as np
import numpy.typing as npt

from penstock.contracts import ByteArray, Numbers
from penstock.fingerprint.file_versions import FileVersion
from penstock.io.files import direct_aligned

Keys = npt.NDArray[np.uint64]


def hash64(text: str) -> int:
    """Hash text, alike in every process on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).digest(), "little")


def keys_of(
    files: Sequence[int] | Keys, offsets: Sequence[int] | Numbers, nbytes: Sequence[int] | Numbers
) -> Keys:
    """Return keys of parts of files: of the hash of each file's path, and the part's offset and size in it."""
    key = _mixed(np.asarray(nbytes, np.int64).view(np.uint64))
    key = _mixed(key ^ np.asarray(offsets, np.int64).view(np.uint64))
    return _mixed(key ^ np.asarray(files, np.uint64))


def origin_of(version: FileVersion) -> int:
    """Return a number that differs where a file was written to or replaced."""
    return hash64(repr(version))


def parts_of(keys: Keys) -> npt.NDArray[np.float64]:
    """Return for each key a number from 0 up to 1: in a cache of C of N bytes lie those below C/N."""
    return (keys >> np.uint64(11)).astype(np.float64) * 2.0**-53


def owners(keys: Keys, nodes: Sequence[str]) -> npt.NDArray[np.intp]:
    """Return which node owns each key, by rendezvous hashing: one more node moves its own share alone.

    Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.
    """
    return np.argmax([_mixed(keys ^ np.uint64(hash64(node))) for node in nodes], axis=0)


def _mixed(words: Keys) -> Keys:
    """Mix the bits of each word (splitmix64's finalizer; Steele, Lea and Flood, 2014)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


_AHEAD = 16
"""Reads of one process that a disk works on at once."""


class ReadAhead:
    """Reads pieces of a file; ahead only if it was opened with O_DIRECT (``direct``)."""

    def __init__(self, fd: int, *, direct: bool) -> None:
        self._fd, self._direct = fd, direct
        self._next: deque[tuple[int, int]] = deque()
        self._coming: dict[int, tuple[mmap.mmap, Future[int]]] = {}  # by offset
        self._free: list[mmap.mmap] = []
        self._given: mmap.mmap | None = None

    def expect(self, pieces: Iterable[tuple[int, int]]) -> None:
        """Read these pieces, (offset, size), ahead, after those that were expected before."""
        if self._direct:
            self._next.extend(pieces)
            self._read_ahead()

    def forget(self, offsets: Container[int]) -> None:
        """Expect pieces no more that begin here."""
        self._next = deque(piece for piece in self._next if piece[0] not in offsets)
        for offset in [each for each in self._coming if each in offsets]:
            buffer, came = self._coming.pop(offset)
            came.exception()
            self._free.append(buffer)

    def read(self, offset: int, nbytes: int) -> ByteArray | None:
        """Return a piece, whose memory the next call reuses; None if it cannot be read whole."""
        self._read_ahead()
        if self._given is not None:
            self._free.append(self._given)
            self._given = None
        if offset not in self._coming:
            self._next = deque(piece for piece in self._next if piece[0] != offset)
            self._begin(offset, nbytes)
        buffer, came = self._coming.pop(offset)
        self._given = buffer
        return np.frombuffer(buffer, np.uint8, nbytes) if came.result() >= nbytes else None

    def _read_ahead(self) -> None:
        while self._next and len(self._coming) < _AHEAD:
            offset, nbytes = self._next.popleft()
            if offset not in self._coming:
                self._begin(offset, nbytes)

    def _begin(self, offset: int, nbytes: int) -> None:
        span = direct_aligned(nbytes)
        at = next((i for i, free in enumerate(self._free) if len(free) >= span), None)
        buffer = mmap.mmap(-1, span) if at is None else self._free.pop(at)
        if at is None and self._free:
            self._free.pop()  # a smaller one
        if self._direct:
            came = _threads().submit(_pread, self._fd, memoryview(buffer)[:span], offset)
        else:
            came = Future[int]()
            came.set_result(_pread(self._fd, memoryview(buffer)[:nbytes], offset))
        self._coming[offset] = buffer, came


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AHEAD, "penstock-cache")


def _pread(fd: int, memory: memoryview, offset: int) -> int:
    try:
        return os.preadv(fd, [memory], offset)
    except OSError:
        return 0
