"""What the sampling process is asked to do, and when its ticks are due; this imports nothing that samples."""

from __future__ import annotations

import msgspec


class Begin(msgspec.Struct, tag="begin"):
    """A run begins, or has begun; it is sampled as soon as the store knows its processes.

    Attributes:
        listeners: What is sampled of it; None for all that can run here.
    """

    id: str
    listeners: tuple[str, ...] | None = None


class End(msgspec.Struct, tag="end"):
    """A run has ended."""

    id: str


class Rate(msgspec.Struct, tag="rate"):
    """Ticks per second from now on."""

    hz: float


class Schedule:
    """Times of ticks, in seconds of a clock that the caller reads.

    Args:
        hz: Ticks per second.

    Attributes:
        missed: Ticks that were left out because their time, and the next one's, had come.
    """

    def __init__(self, hz: float = 1.0) -> None:
        self._interval_s = 1 / hz
        self._next_s = 0.0
        self.missed = 0

    def restart(self, now_s: float) -> None:
        """Let a tick be due now, and the others from here on."""
        self._next_s = now_s

    def set_rate(self, hz: float, now_s: float) -> None:
        """Let a tick be due now, and this many in each second from here on."""
        self._interval_s = 1 / hz
        self._next_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Return the time until the next tick."""
        return max(0.0, self._next_s - now_s)

    def is_due(self, now_s: float) -> bool:
        """Return whether a tick is due; if so, it is taken for done."""
        if now_s < self._next_s:
            return False
        late = int((now_s - self._next_s) / self._interval_s)
        self.missed += late
        self._next_s += (late + 1) * self._interval_s
        return True
