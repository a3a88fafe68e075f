"""How fast a feed goes: who holds it back, how long it waits for trainers, what it has ready and has published."""

from __future__ import annotations

from collections import Counter, deque
from math import ceil

from penstock.feed.feeder.blocks import TO_COME, FeedMember
from penstock.feed.settings import GATHER_S, MOST_BLOCKS
from penstock.memory.room import aligned


class Pace:
    """Counts the time that a feeder waits for its readers, and for room, for which it charges who holds the most.

    Times are given in seconds of one monotonic clock.
    """

    def __init__(self) -> None:
        self.culprit: int | None = None  # the trainer (its member number) that holds the feed back now
        self.idle_since_s: float | None = None  # since when it waits for its readers, who have enough
        self._total_s: Counter[int] = Counter()
        self._since_s = self._room_s = self._idle_s = 0.0

    def blocked(self, culprit: int | None, now_s: float) -> None:
        """Record that the feeder waits for room, and ``culprit`` holds the most of the window."""
        if culprit != self.culprit:
            self.moving(now_s)
            self.culprit, self._since_s = culprit, now_s

    def idles(self, now_s: float) -> None:
        """Record that the feeder waits for its readers."""
        if self.idle_since_s is None:
            self.moving(now_s)
            self.idle_since_s = now_s

    def moving(self, now_s: float) -> None:
        """Record that the feeder waits no more."""
        self._room_s, self._idle_s = self.waited_s(now_s)
        if self.culprit is not None:
            self._total_s[self.culprit] += now_s - self._since_s  # type: ignore[assignment]
        self.culprit = self.idle_since_s = None

    def waited_s(self, now_s: float) -> tuple[float, float]:
        """Return how long the feeder has waited in all for room, and for its readers."""
        idle_s = 0.0 if self.idle_since_s is None else now_s - self.idle_since_s
        return self._room_s + self.current_s(now_s), self._idle_s + idle_s

    def current_s(self, now_s: float) -> float:
        """Return how long the present culprit has held the feed back without a pause."""
        return now_s - self._since_s if self.culprit is not None else 0.0

    def total_s(self, member: int, now_s: float) -> float:
        """Return how long a member has held the feed back in all."""
        return self._total_s[member] + (self.current_s(now_s) if member == self.culprit else 0.0)

    def forget(self, member: int, now_s: float) -> None:
        """Forget a member that has left."""
        if member == self.culprit:
            self.moving(now_s)
        self._total_s.pop(member, None)


_FIRST_TRAINER_S = 60.0
"""A lingering feeder waits at least this long for its first trainer."""
_AWAITED_S = 10.0
"""A feed that was started for trainers of another ends so long after it was last asked for, if none has come."""
_OTHERS_S = 1.0
"""When one has come, it prepares for the others so long."""
_LATE_S = 0.01
"""A time is looked at this much after its end, lest it is looked at just before."""


class Patience:
    """Decides when a feed has waited for trainers long enough; times are in seconds of one monotonic clock."""

    def __init__(self, linger_s: float | None, now_s: float) -> None:
        self._linger_s = linger_s  # seconds from the last trainer's end to the feed's; None for a feed that stays
        self._empty_since_s = now_s + max(0.0, _FIRST_TRAINER_S - (linger_s or 0))  # the feed begins now
        self._gather_until_s: float | None = None
        self._await_until_s: float | None = None
        self._has_come = False  # whether a trainer has ever begun to read

    def awaits(self, now_s: float) -> bool:
        """Wait for trainers that are to come from another feed; return whether that makes sense: none is here."""
        if not self._has_come:
            self._await_until_s = now_s + _AWAITED_S
        return not self._has_come

    def awaits_on(self, now_s: float) -> None:
        """Record that they are still to come."""
        if self._await_until_s is not None and not self._has_come:
            self._await_until_s = now_s + _AWAITED_S

    def came(self, now_s: float) -> None:
        """Record that a trainer begins to read."""
        self._has_come = True
        if self._await_until_s is not None:
            self._await_until_s = min(self._await_until_s, now_s + _OTHERS_S)

    def ends_awaiting(self, now_s: float) -> bool:
        """Whether those to come have been waited for long enough; true only once."""
        if self._await_until_s is None or self._await_until_s > now_s:
            return False
        self._await_until_s = None
        if not self._has_come:
            self.lose(now_s)
        return True

    def left(self, now_s: float) -> None:
        """Record that a trainer has left, or reads no more."""
        self._empty_since_s = now_s

    def lose(self, now_s: float) -> None:
        """Wait for trainers no more."""
        self._linger_s, self._empty_since_s = 0.0, min(self._empty_since_s, now_s)

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
        """Return after what time to look again, if any; ``lingers`` if the feed stays on without trainers now."""
        until_s = [each for each in (self._gather_until_s, self._await_until_s) if each is not None]
        if lingers and self._linger_s is not None:
            until_s.append(self._empty_since_s + self._linger_s)
        return max(0.0, min(until_s) - now_s) + _LATE_S if until_s else None


_READY_BYTES = 8 << 20
"""Where batches are smaller than half of this, more than two are made ready: handing each over takes its time."""
_MOST_AHEAD_S = 2.0
"""More than two are made ready only as far as they take no longer: the last trainer may need none of them."""


def blocks_ready(
    member: FeedMember,
    rows: int,  # rows of a block
    nbytes: int,  # bytes of a block
    window_bytes: int,  # size of the ring
    batches: int | None,  # blocks in a cycle; None while unknown
    prefetch: int | None,  # batches to have ready, if the feed's settings set it
    block_s: float = 0.0,  # how long the source takes for a block; 0 while unknown
) -> int:
    """Return how many blocks of this size are made ready for a trainer; for those to come, half a window."""
    if member.id == TO_COME:
        return max(1, min(window_bytes // aligned(nbytes), MOST_BLOCKS) // 2)
    blocks_per_batch = ceil((member.batch_rows or rows) * member.world / (rows * member.part))
    if batches is not None:
        blocks_per_batch = min(blocks_per_batch, batches)
    if member.part < 1:
        in_half_a_window = min(window_bytes // aligned(nbytes), MOST_BLOCKS) // 4
        blocks_per_batch = max(1, min(blocks_per_batch, in_half_a_window))
    if prefetch is not None:
        return prefetch * blocks_per_batch
    small = _READY_BYTES // aligned(nbytes)
    if small * block_s > _MOST_AHEAD_S:
        small = int(_MOST_AHEAD_S / block_s)
    return max(2 * blocks_per_batch, small if batches is None else min(small, batches))


_RATE_OVER_S = 5.0
_USUAL_OF = 64


class Throughput:
    """Counts published blocks; one thread counts, any may read."""

    def __init__(self) -> None:
        self.blocks = self.in_place = self.samples = self.bytes = 0
        """In place are blocks that the source's workers wrote into the ring themselves."""
        self.positions = 0  # samples published, and those of their blocks that were left out
        self._recent: deque[tuple[float, int]] = deque()
        self._took_s: deque[float] = deque(maxlen=_USUAL_OF)

    def took(self, took_s: float) -> float:
        """Note how long a block took; return the usual time, without the longest, in which the source began."""
        self._took_s.append(took_s)
        return (sum(self._took_s) - max(self._took_s)) / max(1, len(self._took_s) - 1)

    def count(self, rows: int, stored: int, nbytes: int, now_s: float, *, in_place: bool) -> None:
        self.blocks += 1
        self.positions += rows
        self.in_place += in_place
        self.samples += stored
        self.bytes += nbytes
        self._recent.append((now_s, self.samples))
        while self._recent[0][0] < now_s - _RATE_OVER_S:
            self._recent.popleft()

    def samples_per_s(self, now_s: float) -> float:
        recent = [entry for entry in list(self._recent) if entry[0] >= now_s - _RATE_OVER_S]
        if len(recent) < 2:
            return 0.0
        return (recent[-1][1] - recent[0][1]) / (now_s - recent[0][0])
