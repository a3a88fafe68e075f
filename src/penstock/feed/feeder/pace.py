"""Who holds a feed back, and for how long."""

from __future__ import annotations

from collections import Counter


class Pace:
    """Charges the time that a feeder waits for room to the trainer that holds the most.

    Times are given in seconds of one monotonic clock.
    """

    def __init__(self) -> None:
        self._total_s: Counter[int] = Counter()
        self._culprit: int | None = None
        self._since_s = 0.0

    @property
    def culprit(self) -> int | None:
        """The trainer (its member number) that holds the feed back now."""
        return self._culprit

    def blocked(self, culprit: int | None, now_s: float) -> None:
        """Record that the feeder waits for room, and ``culprit`` holds the most of the window."""
        if culprit != self._culprit:
            self.moving(now_s)
            self._culprit, self._since_s = culprit, now_s

    def moving(self, now_s: float) -> None:
        """Record that the feeder has room again."""
        if self._culprit is not None:
            self._total_s[self._culprit] += now_s - self._since_s  # type: ignore[assignment]
            self._culprit = None

    def current_s(self, now_s: float) -> float:
        """Return how long the present culprit has held the feed back without a pause."""
        return now_s - self._since_s if self._culprit is not None else 0.0

    def total_s(self, member: int, now_s: float) -> float:
        """Return how long a member has held the feed back in all."""
        return self._total_s[member] + (self.current_s(now_s) if member == self._culprit else 0.0)

    def forget(self, member: int, now_s: float) -> None:
        """Forget a member that has left."""
        if member == self._culprit:
            self.moving(now_s)
        self._total_s.pop(member, None)
