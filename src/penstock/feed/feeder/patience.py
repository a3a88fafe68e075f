"""How long a feed waits for trainers: for its first, for those that are expected, and after its last."""

from __future__ import annotations

from penstock.feed.settings import GATHER_S

_FIRST_TRAINER_S = 60.0
"""A lingering feeder waits at least this long for its first trainer."""
_LATE_S = 0.01
"""A time is looked at this much after its end, lest it is looked at just before."""


class Patience:
    """Says when a feed has waited for trainers long enough.

    Times are given in seconds of one monotonic clock.

    Args:
        linger_s: Seconds from the last trainer's end to the feed's; None for a feed that stays.
        now_s: When the feed begins.
    """

    def __init__(self, linger_s: float | None, now_s: float) -> None:
        self._linger_s = linger_s
        self._empty_since_s = now_s + max(0.0, _FIRST_TRAINER_S - (linger_s or 0))
        self._gather_until_s: float | None = None

    def left(self, now_s: float) -> None:
        """Record that a trainer has left, or reads no more."""
        self._empty_since_s = now_s

    def gathers(self, now_s: float) -> None:
        """Record that a trainer waits for those that are expected; the first one's time counts."""
        if self._gather_until_s is None:
            self._gather_until_s = now_s + GATHER_S

    def ends_gathering(self, now_s: float) -> bool:
        """Whether those expected have been waited for long enough; true only once."""
        if self._gather_until_s is None or self._gather_until_s > now_s:
            return False
        self._gather_until_s = None
        return True

    def has_lingered(self, now_s: float) -> bool:
        """Whether a feed without trainers has stayed long enough."""
        return self._linger_s is not None and now_s > self._empty_since_s + self._linger_s

    def timeout_s(self, now_s: float, *, lingers: bool) -> float | None:
        """Return after what time to look again; None if nothing is waited for.

        Args:
            now_s: The time now.
            lingers: Whether the feed stays on without trainers now.
        """
        until_s = [] if self._gather_until_s is None else [self._gather_until_s]
        if lingers and self._linger_s is not None:
            until_s.append(self._empty_since_s + self._linger_s)
        return max(0.0, min(until_s) - now_s) + _LATE_S if until_s else None
