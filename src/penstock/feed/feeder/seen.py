"""What a feed, its trainers and its kin show, and how fast a trainer would be alone by it.

Times are in seconds of one monotonic clock, places in samples from the first cycle on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from statistics import mean, median, stdev
from typing import NamedTuple

MEASURED_S, RECENT_S = 30.0, 5.0
_STOPPED_S, _PAUSE_S, _USUAL, _STEPS = 5.0, 2.0, 4, 8
"""Pauses are also longer than so many of a trainer's usual steps, as its last ones show."""


class MemberSeen(NamedTuple):
    """A trainer that reads, at one moment."""

    id: int
    passed: float  # positions that it has passed in all
    waited_s: float  # for which it has waited for data in all
    place: float  # where it stands
    left: float  # positions left in its epoch; 0 between two
    has_some: bool  # whether there is something that it could take
    moves: bool = True  # whether it may leave
    starts: bool = True  # whether it can start a feed


class FeedSeen(NamedTuple):
    """A feed and its machine, at one moment."""

    published: float  # samples
    blocks: float
    room_s: float  # for which it has waited for room in all
    idle_s: float  # for which it has waited for its readers in all
    front: float  # place of its next block
    room: float  # samples that its window has room for
    members: Sequence[MemberSeen]
    cpu_s: float  # of its feeder and workers in all
    idle_cores: float
    may_start: bool = True  # whether there is memory for another feed, and none is being started
    make_s: float = 0.0  # that ``make_loader`` took
    start_s: float = 0.0  # until a new feed serves


class KinSeen(NamedTuple):
    """Another feed of the family, at one moment."""

    settled: bool  # whether it serves trainers
    published: float
    blocks: float
    rate: float  # samples/s over 5 s
    busy: bool  # whether it has waited neither for room nor for its readers, over 5 s
    alone: float | None  # what its slowest trainer could take, samples/s; None while not measured
    slowest: float  # its slowest trainer's place
    front: float
    made_s: float = 0.0  # for which it has prepared, without trainers, until half of its window was full
    is_full: bool = False  # whether it is


class Course:
    """Totals over a time, of which growths are asked."""

    def __init__(self, totals: int) -> None:
        self._seen, self._nothing = deque[tuple[float, ...]](), (0.0,) * (totals + 1)

    def see(self, at_s: float, *totals: float) -> None:
        self._seen.append((at_s, *totals))
        while len(self._seen) > 1 and self._seen[1][0] <= at_s - MEASURED_S:
            self._seen.popleft()

    def over(self, most_s: float) -> tuple[float, ...]:
        """Return how long a time, of at least so long if so much is known, and how much each total grew in it."""
        if not self._seen:
            return self._nothing
        last = self._seen[-1]
        first = next((each for each in reversed(self._seen) if each[0] <= last[0] - most_s), self._seen[0])
        return tuple(after - before for before, after in zip(first, last, strict=True))


def _rate(grew: Sequence[float]) -> float:
    counted_s, passed, waited_s = grew
    return passed / max(counted_s - waited_s, counted_s / 50, 1e-9)


class Alone:
    """How fast a trainer would be if it never waited: an upper bound, for waits hide what a GPU does meanwhile."""

    def __init__(self, now: float, seen: MemberSeen) -> None:
        self._now, self._seen = now, seen
        self._counted_s = self._waited_s = self._pause_s = 0.0  # without times between epochs, and pauses
        self._took, self._gaps_s = now, deque[float](maxlen=_STEPS)
        self._course = Course(2)
        self.still_s = 0.0  # for which it takes nothing, although it could
        self._course.see(0.0, 0.0, 0.0)

    def see(self, now: float, seen: MemberSeen) -> None:
        took_s, took = now - self._now, seen.passed > self._seen.passed
        could = seen.has_some or not seen.left
        self.still_s = 0.0 if took or not could else self.still_s + took_s
        if not took and could:
            self._pause_s += took_s if seen.left else MEASURED_S
        else:
            pause_s, self._pause_s = self._pause_s, 0.0
            self._counted_s += took_s + (pause_s if pause_s <= self._longest(_PAUSE_S) else 0.0)
            self._waited_s += seen.waited_s - self._seen.waited_s
        if took:
            self._gaps_s.append(now - self._took)
            self._took = now
        self._now, self._seen = now, seen
        self._course.see(self._counted_s, seen.passed, self._waited_s)

    @property
    def is_stopped(self) -> bool:
        return self.still_s >= self._longest(_STOPPED_S)

    @property
    def waiting(self) -> float:
        """The part of its time that it waits."""
        counted_s, _, waited_s = self._course.over(MEASURED_S)
        return waited_s / counted_s if counted_s else 0.0

    @property
    def samples_per_s(self) -> float | None:
        """None while it has not been measured long enough."""
        return self.rate_over(MEASURED_S) if self._course.over(MEASURED_S)[0] >= MEASURED_S else None

    def rate_over(self, most_s: float) -> float:
        return _rate(self._course.over(most_s))

    def rate_and_spread(self) -> tuple[float, float]:
        """Return its rate, and how far that of parts of 5 s differs from it, as a part of it."""
        each = [self._course.over(RECENT_S * part) for part in range(int(MEASURED_S / RECENT_S) + 1)]
        parts = [_rate([b - a for a, b in zip(*two, strict=True)]) for two in pairwise(each)]
        return self.rate_over(MEASURED_S), stdev(parts) / max(mean(parts), 1e-9)

    def _longest(self, least_s: float) -> float:
        return max(least_s, _USUAL * median(self._gaps_s)) if self._gaps_s else least_s
