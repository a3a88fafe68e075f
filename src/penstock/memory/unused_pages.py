"""Pages at the end of a ring that have not been used for a while: given back to the kernel."""

from __future__ import annotations

from penstock.memory.host_ring import WritableHostRing
from penstock.memory.room import Room

LOOK_S = 10.0
"""Pages are given back when they have not been used for one to two such intervals."""
_LEAST_BYTES = 16 << 20
_AT_ONCE_BYTES = 64 << 20  # some milliseconds, during which the feed waits
_ALIGNMENT = 2 << 20  # huge pages stay whole


class UnusedPages:
    """Gives back a ring's end once trainers have come closer together and no longer use it.

    First fit reserves the lowest bytes, so what is not needed is the end. Whoever
    calls this holds the lock that guards the room. Where a ring's pages may be
    registered, all of them stay: a GPU would go on reading those that were given back.

    Args:
        room: What is reserved.
        ring: Where it is reserved.
    """

    def __init__(self, room: Room, ring: WritableHostRing) -> None:
        self._room = room
        self._ring = ring
        self._written = 0  # nothing beyond has been written since its pages were given back
        self._peak = 0  # of the last interval
        self._next_look_s = 0.0

    def keep(self) -> None:
        """Give no page back from now on: somebody may register the ring."""
        self._ring.registered = True

    def timeout_s(self, now: float) -> float | None:
        """Return the seconds until ``give_back`` should be called; None while there is nothing to give back."""
        unused = max(self._written, self._room.peak) - self._room.top
        if unused < _LEAST_BYTES + _ALIGNMENT or self._ring.registered:
            return None
        return max(0.0, self._next_look_s - now)

    def give_back(self, now: float) -> None:
        """Give back what has not been used for a while, if it is time to look."""
        if now < self._next_look_s:
            return
        self._next_look_s = now + LOOK_S
        recent = max(self._peak, self._room.peak)
        self._written = max(self._written, recent)
        self._peak = self._room.peak
        self._room.forget_peak()
        start = -(-recent // _ALIGNMENT) * _ALIGNMENT
        if self._written - start >= _LEAST_BYTES and not self._ring.registered:
            start = max(start, (self._written - _AT_ONCE_BYTES) // _ALIGNMENT * _ALIGNMENT)
            self._ring.give_back(start)
            self._written = start
