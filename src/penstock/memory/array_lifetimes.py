"""Private buffers that are reused once everything built on them has died."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import numpy as np

from penstock.contracts import ByteArray
from penstock.memory.room import ALIGNMENT


class _Watch(weakref.ref[ByteArray]):
    """A weak reference that carries what to call when its array dies."""

    __slots__ = ("when_dead",)
    when_dead: Callable[[], None]


_watched: dict[int, _Watch] = {}  # by id: a reference to an array has no hash


def _dead(watch: weakref.ref[ByteArray]) -> None:
    assert isinstance(watch, _Watch)
    watch.when_dead()
    _watched.pop(id(watch), None)


def when_dead(array: ByteArray, call: Callable[[], None]) -> None:
    """Call ``call`` once nothing refers to ``array`` or to any view or tensor built on it.

    The call may come in any thread, in the middle of any statement, and twice.
    """
    watch = _Watch(array, _dead)
    watch.when_dead = call
    _watched[id(watch)] = watch


def notice_dead() -> None:
    """Repeat calls that an exception such as Ctrl-C broke off, which Python only reports."""
    for watch in list(_watched.values()):
        if watch() is None:
            _dead(watch)


def _give_back(held: list[ByteArray], free: deque[ByteArray]) -> None:
    """Move a buffer from ``held`` to ``free``, once."""
    with suppress(IndexError):
        free.append(held.pop())


class Recycler:
    """Hands out byte arrays and takes their memory back when they die.

    Freshly mapped pages cost several times the copy into them, so memory of
    dead batches is reused for new ones. Small arrays come from the allocator,
    which recycles them itself.

    Args:
        keep: Most free buffers that wait for reuse.
    """

    SMALL_BYTES = 64 << 10

    def __init__(self, keep: int = 8) -> None:
        self._free: deque[ByteArray] = deque(maxlen=keep)

    def take(self, nbytes: int) -> ByteArray:
        """Return a writable array of ``nbytes`` with arbitrary content; the caller owns it."""
        if nbytes <= self.SMALL_BYTES:
            return np.empty(nbytes, np.uint8)
        memory = self._fitting(nbytes)
        # A memoryview between the two stops NumPy from shortening the chain of
        # bases: every view of `lent` keeps `lent` itself alive.
        lent = np.frombuffer(memory.data, np.uint8, count=nbytes)
        when_dead(lent, partial(_give_back, [memory], self._free))
        return lent

    def _fitting(self, nbytes: int) -> ByteArray:
        for _ in range(len(self._free)):
            try:
                memory = self._free.popleft()
            except IndexError:  # a batch that died in another thread pushed it out
                break
            if nbytes <= memory.nbytes <= 2 * nbytes + self.SMALL_BYTES:
                return memory
            self._free.append(memory)
        memory = np.empty(nbytes + ALIGNMENT, np.uint8)
        return memory[-memory.ctypes.data % ALIGNMENT :][:nbytes]  # JAX copies unaligned arrays
