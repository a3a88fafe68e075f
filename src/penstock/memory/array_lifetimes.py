"""Private buffers that are reused once everything built on them has died."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from penstock.contracts import ByteArray
from penstock.linux.when_gone import in_python, when_gone
from penstock.memory.room import ALIGNMENT


def when_dead(array: ByteArray, call: Callable[[], None]) -> None:
    """Call ``call`` once nothing refers to ``array`` or to any view or tensor built on it.

    The call may come in any thread, in the middle of any statement, and twice.
    """
    when_gone(array, in_python(call))


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
        when_gone(lent, map(self._free.append, (memory,)))
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
