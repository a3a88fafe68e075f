"""Pieces of a file, read ahead of who asks for them."""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

import numpy as np

from penstock.contracts import ByteArray
from penstock.io.files import direct_aligned

_AHEAD = 16
"""Reads of one process that a disk works on at once."""


class Pieces:
    """Reads pieces of a file.

    Args:
        fd: The file.
        direct: Whether it was opened with O_DIRECT; only then is anything read ahead.
    """

    def __init__(self, fd: int, *, direct: bool) -> None:
        self._fd, self._direct = fd, direct
        self._next: deque[tuple[int, int]] = deque()
        self._coming: dict[int, tuple[mmap.mmap, Future[int]]] = {}  # by offset
        self._free: list[mmap.mmap] = []
        self._given: mmap.mmap | None = None

    def expect(self, pieces: Iterable[tuple[int, int]]) -> None:
        """Read these pieces, (offset, size), ahead in this order; forget what was expected before."""
        for buffer, came in self._coming.values():
            came.exception()
            self._free.append(buffer)
        self._coming.clear()
        self._next = deque(pieces if self._direct else ())

    def read(self, offset: int, nbytes: int) -> ByteArray | None:
        """Return a piece, whose memory the next call reuses; None if it cannot be read whole."""
        while self._next and len(self._coming) < _AHEAD:
            self._begin(*self._next.popleft())
        if self._given is not None:
            self._free.append(self._given)
            self._given = None
        if offset not in self._coming:
            self._begin(offset, nbytes)
        buffer, came = self._coming.pop(offset)
        self._given = buffer
        return np.frombuffer(buffer, np.uint8, nbytes) if came.result() >= nbytes else None

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
