"""Which bytes of a ring are free: first fit over a sorted list of gaps, pure arithmetic."""

from __future__ import annotations

from bisect import bisect_left

ALIGNMENT = 64
"""Reservations start on a cache line, in bytes."""


def aligned(nbytes: int) -> int:
    """Round up to the alignment; an empty reservation takes one line, to have an offset."""
    return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)


class Room:
    """The free and reserved bytes of a ring.

    The lowest gap that fits is taken, so a feed whose trainers are in step reuses
    a few warm pages, and a block that a trainer holds costs only its own bytes
    (docs/decisions/0001-first-fit.md).
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes  # size of the ring
        self._gaps: list[tuple[int, int]] = [(0, capacity_bytes)]  # (start, stop), sorted, disjoint
        self._taken: dict[int, int] = {}
        self.peak = 0  # the highest ``top`` since ``forget_peak``

    @property
    def used_bytes(self) -> int:
        return sum(self._taken.values())

    @property
    def top(self) -> int:
        """Where the last reservation ends; nothing beyond is in use."""
        start, stop = self._gaps[-1] if self._gaps else (0, 0)
        return start if stop == self.capacity_bytes else self.capacity_bytes

    def forget_peak(self) -> None:
        self.peak = self.top

    def reserve(self, nbytes: int) -> int | None:
        """Reserve ``nbytes`` and return their offset; None while no gap is large enough."""
        need = aligned(nbytes)
        for i, (start, stop) in enumerate(self._gaps):
            if stop - start >= need:
                if stop - start == need:
                    del self._gaps[i]
                else:
                    self._gaps[i] = (start + need, stop)
                self._taken[start] = need
                self.peak = max(self.peak, start + need)
                return start
        return None

    def shrink(self, offset: int, nbytes: int) -> None:
        """Free what was reserved at this offset beyond ``nbytes``."""
        need, taken = aligned(nbytes), self._taken[offset]
        if need < taken:
            self._taken[offset] = need
            self._free(offset + need, offset + taken)

    def release(self, offset: int) -> None:
        """Free what ``reserve`` gave at this offset."""
        self._free(offset, offset + self._taken.pop(offset))

    def _free(self, start: int, stop: int) -> None:
        """Add a gap; neighbouring gaps become one."""
        i = bisect_left(self._gaps, (start, stop))
        if i < len(self._gaps) and self._gaps[i][0] == stop:
            stop = self._gaps.pop(i)[1]
        if i > 0 and self._gaps[i - 1][1] == start:
            start = self._gaps.pop(i - 1)[0]
            i -= 1
        self._gaps.insert(i, (start, stop))
