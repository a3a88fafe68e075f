"""Private buffers that are used again once whatever was built on them has died."""

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
    """A weak reference that carries what to do when its array dies."""

    __slots__ = ("when_dead",)
    when_dead: Callable[[], None]


_watched: dict[int, _Watch] = {}  # by id: a reference to an array has no hash


def _dead(watch: weakref.ref[ByteArray]) -> None:
    assert isinstance(watch, _Watch)
    watch.when_dead()
    _watched.pop(id(watch), None)


def when_dead(array: ByteArray, call: Callable[[], None]) -> None:
    """Call ``call`` once nothing refers to ``array`` or to any view or tensor built on it.

    The call may come from any thread, and in the middle of any statement; it
    may come twice.
    """
    watch = _Watch(array, _dead)
    watch.when_dead = call
    _watched[id(watch)] = watch


def notice_dead() -> None:
    """Make the calls that are due and were broken off, as Ctrl-C may do, which Python then only reports."""
    for watch in list(_watched.values()):
        if watch() is None:
            _dead(watch)


def _give_back(held: list[ByteArray], free: deque[ByteArray]) -> None:
    """Move a buffer from where it is held to where it is free, once."""
    with suppress(IndexError):
        free.append(held.pop())


class Recycler:
    """Hands out byte arrays and takes their memory back when they die.

    Freshly mapped pages cost several times the copy into them, so the memory
    of batches that have died serves the next ones. Small arrays come from the
    allocator, which recycles them itself.

    Args:
        keep: How many free buffers wait for reuse at the most.
    """

    SMALL_BYTES = 64 << 10

    def __init__(self, keep: int = 8) -> None:
        self._free: deque[ByteArray] = deque(maxlen=keep)

    def take(self, nbytes: int) -> ByteArray:
        """A writable array of ``nbytes`` whose content is arbitrary; the caller owns it."""
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
            except IndexError:  # a batch that died in another thread took its place
                break
            if nbytes <= memory.nbytes <= 2 * nbytes + self.SMALL_BYTES:
                return memory
            self._free.append(memory)
        memory = np.empty(nbytes + ALIGNMENT, np.uint8)
        return memory[-memory.ctypes.data % ALIGNMENT :][:nbytes]  # JAX copies what does not begin so
