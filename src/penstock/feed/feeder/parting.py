"""When trainers of a feed read on on one of their own, and when they come together again: the policy alone.

Each feeder decides for its own trainers, and for those that left it. Nobody leaves before a dry trial: the new
feed prepares beside the old one, which all go on reading, and must show that both make more together.
Decision 34 has the model. Times are in seconds of one monotonic clock, places in samples from the first cycle on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

_GAIN = 1.06
"""A split must let those who leave go faster by this factor; together again, nobody may go below ``_LOSS``."""
_LOSS = 0.95
_MEASURED_S, _RECENT_S, _HOLDS_S, _RETURNS_AFTER_S = 30.0, 5.0, 10.0, 6.0
_STOPPED_S, _PAUSE_S, _USUAL, _STEPS = 5.0, 2.0, 4, 8
"""Pauses are also longer than so many of a trainer's usual steps, as its last ones show."""
_TRIAL_S, _LONGEST_TRIAL_S, _TRIAL_BLOCKS = 3.0, 10.0, 8
_NEW_S, _START_S = 20.0, 60.0
_LEAST_WAITING = 0.05
_PAYS_BACK_S = 300.0
_PATIENCE_S, _MOST_PATIENCE_S, _HALVED_EACH_S = 30.0, 3600.0, 900.0


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


class StartFeed(NamedTuple):
    """Have one of those who would leave start a feed, in the background."""

    to: str
    members: tuple[int, ...]


class Leave(NamedTuple):
    """Have trainers read on elsewhere from their places."""

    to: str
    members: tuple[int, ...]
    stopped: bool  # because another takes nothing


class GiveUp(NamedTuple):
    """End a feed that nobody is to move to."""

    to: str
    why: str


class Return(NamedTuple):
    """Have all who read a feed come back."""

    child: str


class Join(NamedTuple):
    """Have a trainer begin its next epoch on a feed; None for here."""

    member: int
    to: str | None


Decision = StartFeed | Leave | GiveUp | Return | Join


class _Course:
    """Totals over a time, of which growths are asked."""

    def __init__(self, totals: int) -> None:
        self._seen, self._nothing = deque[tuple[float, ...]](), (0.0,) * (totals + 1)

    def see(self, at_s: float, *totals: float) -> None:
        self._seen.append((at_s, *totals))
        while len(self._seen) > 1 and self._seen[1][0] <= at_s - _MEASURED_S:
            self._seen.popleft()

    def over(self, most_s: float) -> tuple[float, ...]:
        """Return how long a time, of at least so long if so much is known, and how much each total grew in it."""
        if not self._seen:
            return self._nothing
        last = self._seen[-1]
        first = next((each for each in reversed(self._seen) if each[0] <= last[0] - most_s), self._seen[0])
        return tuple(after - before for before, after in zip(first, last, strict=True))


class _Alone:
    """How fast a trainer would be if it never waited: an upper bound, for waits hide what a GPU does meanwhile."""

    def __init__(self, now: float, seen: MemberSeen) -> None:
        self._now, self._seen = now, seen
        self._counted_s = self._waited_s = self._pause_s = 0.0  # without times between epochs, and pauses
        self._took, self._gaps_s = now, deque[float](maxlen=_STEPS)
        self._course = _Course(2)
        self.still_s = 0.0  # for which it takes nothing, although it could
        self._course.see(0.0, 0.0, 0.0)

    def see(self, now: float, seen: MemberSeen) -> None:
        took_s, took = now - self._now, seen.passed > self._seen.passed
        could = seen.has_some or not seen.left
        self.still_s = 0.0 if took or not could else self.still_s + took_s
        if not took and could:
            self._pause_s += took_s if seen.left else _MEASURED_S
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
        counted_s, _, waited_s = self._course.over(_MEASURED_S)
        return waited_s / counted_s if counted_s else 0.0

    @property
    def samples_per_s(self) -> float | None:
        """None while it has not been measured long enough."""
        counted_s, passed, waited_s = self._course.over(_MEASURED_S)
        return passed / max(counted_s - waited_s, counted_s / 50) if counted_s >= _MEASURED_S else None

    def _longest(self, least_s: float) -> float:
        return max(least_s, _USUAL * median(self._gaps_s)) if self._gaps_s else least_s


@dataclass
class _Trial:
    to: str
    movers: tuple[int, ...]
    stopped: tuple[int, ...]  # members that take nothing, for which the others would leave
    began: float
    rate: float  # of this feed, before
    serves: float | None = None  # since when the new feed does
    here: FeedSeen | None = None  # this one, as it began to


class Parting:
    """Decides for the trainers of one feed; ``look`` is called each second, and four times as often in a trial."""

    def __init__(self, next_name: Callable[[], str], now: float, *, is_new: bool = False) -> None:
        self._next_name = next_name  # names a feed that is to be started
        self._quiet_until = now + _NEW_S if is_new else now
        self._waits_for_stops = is_new  # whether one that stops is to be left only when it is quiet no more
        self._patience_s, self._patience_since = _PATIENCE_S, now
        self._alone: dict[int, _Alone] = {}
        self._course = _Course(4)
        self._splits_since: float | None = None
        self._returns_since: dict[str, float] = {}  # of the feeds that it has parted from, by name
        self._found_since: dict[int, tuple[str | None, float]] = {}  # which feed a member could join, since when
        self._joins: dict[int, str | None] = {}  # where members were told to begin their next epochs
        self._room_s, self._had_no_room = 0.0, now  # waited for room in all, and when it last did
        self.trial: _Trial | None = None
        self.children: list[str] = []  # feeds that have left this one
        self.refused = ""  # why the last trial failed

    def look(self, now: float, feed: FeedSeen, kin: Mapping[str, KinSeen]) -> list[Decision]:
        """Decide what is to be done now."""
        self._see(now, feed)
        if self.trial is not None:
            decided = self._judged(self.trial, now, feed, kin.get(self.trial.to))
        else:
            decided = [*self._returning(now, feed, kin)] or [*self._parting(now, feed)]
        return [*decided, *self._joining(now, feed, kin)]

    def alone(self, member: int) -> float | None:
        """How fast a member would be alone, in samples/s; None while that is not known."""
        return self._alone[member].samples_per_s if member in self._alone else None

    @property
    def slowest(self) -> float | None:
        """How fast its slowest member would be alone; None while one has not been measured."""
        each = [0.0 if alone.is_stopped else alone.samples_per_s for alone in self._alone.values()]
        return None if None in each else min(each, default=None)  # type: ignore[type-var]

    @property
    def rate(self) -> float:
        """Samples published per second, of late."""
        return self._rate(_RECENT_S)

    @property
    def is_busy(self) -> bool:
        """Whether it has waited neither for room nor for its readers of late."""
        took_s, _, room_s, idle_s, _ = self._course.over(_RECENT_S)
        return took_s >= _RECENT_S / 2 and room_s + idle_s <= _LEAST_WAITING * took_s

    def _rate(self, over_s: float) -> float:
        took_s, published, *_ = self._course.over(over_s)
        return published / took_s if took_s else 0.0

    def _see(self, now: float, feed: FeedSeen) -> None:
        if feed.room_s > self._room_s:
            self._room_s, self._had_no_room = feed.room_s, now
        self._course.see(now, feed.published, feed.room_s, feed.idle_s, feed.cpu_s)
        members = {each.id: each for each in feed.members}
        self._alone = {id: alone for id, alone in self._alone.items() if id in members}
        for id, seen in members.items():
            if id in self._alone:
                self._alone[id].see(now, seen)
            else:
                self._alone[id] = _Alone(now, seen)
        while now - self._patience_since >= _HALVED_EACH_S:
            self._patience_s = max(_PATIENCE_S, self._patience_s / 2)
            self._patience_since += _HALVED_EACH_S

    def _be_quiet(self, now: float, times: int, *, stops: bool = True) -> None:
        self._quiet_until, self._waits_for_stops = now + self._patience_s, stops
        self._patience_s, self._patience_since = min(_MOST_PATIENCE_S, self._patience_s * times), now
        self._splits_since = None

    def _spare(self, feed: FeedSeen) -> float:
        _, published, _, _, cpu_s = self._course.over(_MEASURED_S)
        return feed.idle_cores * published / cpu_s if cpu_s > 0 else float("inf")

    def _parting(self, now: float, feed: FeedSeen) -> Iterator[Decision]:
        stopped = tuple(each.id for each in feed.members if self._alone[each.id].is_stopped)
        others = [each for each in feed.members if each.id not in stopped]
        is_quiet = now < self._quiet_until
        if stopped and others and not (is_quiet and self._waits_for_stops):
            if feed.room < self.rate * (feed.start_s + 1) or not self.rate:
                yield from self._prepared(now, feed, others, stopped)
            return
        cut = None if is_quiet or stopped else self._best_cut(feed)
        if cut is None:
            self._splits_since = None
        elif self._splits_since is None:
            self._splits_since = now
        elif now - self._splits_since >= _HOLDS_S:
            yield from self._prepared(now, feed, cut, ())

    def _best_cut(self, feed: FeedSeen) -> list[MemberSeen] | None:
        alone = {each.id: self._alone[each.id].samples_per_s or 0.0 for each in feed.members}
        took_s, published, room_s, _, _ = self._course.over(_MEASURED_S)
        if len(alone) < 2 or not all(alone.values()) or not published or room_s < _LEAST_WAITING * took_s:
            return None
        rate, spare = published / took_s, self._spare(feed)
        ranked = sorted(feed.members, key=lambda each: -alone[each.id])
        best, found = 0.0, None
        for cut in range(1, len(ranked)):
            fast, slow = ranked[:cut], ranked[cut:]
            goes = min(alone[fast[-1].id], spare)
            if goes < _GAIN * rate or (goes / rate - 1) * _PAYS_BACK_S < feed.make_s:
                continue
            if any(self._alone[each.id].waiting < _LEAST_WAITING for each in fast):
                continue
            gain = sum((goes - rate) / alone[each.id] for each in fast)
            leave = next((part for part in (fast, slow) if all(each.moves for each in part)), None)
            if gain > best and leave is not None:
                best, found = gain, leave
        return found

    def _prepared(
        self, now: float, feed: FeedSeen, leave: Sequence[MemberSeen], stopped: tuple[int, ...]
    ) -> Iterator[Decision]:
        if not feed.may_start or not any(each.starts for each in leave) or not all(each.moves for each in leave):
            return
        movers, self.refused = tuple(each.id for each in leave), ""
        self.trial = _Trial(self._next_name(), movers, stopped, now, self._rate(_MEASURED_S))
        yield StartFeed(self.trial.to, movers)

    def _judged(self, trial: _Trial, now: float, feed: FeedSeen, there: KinSeen | None) -> list[Decision]:
        here = {each.id: each for each in feed.members}
        movers = tuple(id for id in trial.movers if id in here)
        if not movers:
            return self.fail(now, "those who would have left have gone")
        if there is None:
            if trial.serves is not None or now - trial.began > _START_S + feed.make_s:
                return self.fail(now, "it did not serve")
            return []
        if trial.serves is None or trial.here is None:
            trial.serves, trial.here = now, feed
            return []
        was, took_s = {each.id: each for each in trial.here.members}, now - trial.serves
        waited_s = feed.room_s - trial.here.room_s
        moved_on = [id for id in here if id not in was or here[id].passed > was[id].passed]
        if trial.stopped:
            if any(id in moved_on for id in trial.stopped if id in here):
                return self.fail(now, "who had stopped went on")
            if took_s >= 1 and waited_s >= took_s / 2:
                return self._passed(now, movers)
            return self.fail(now, "this feed still had room") if took_s >= _LONGEST_TRIAL_S else []
        if now - max(trial.serves, self._had_no_room) >= 1:
            return self.fail(now, "this feed was hindered by it")
        few = min(feed.blocks - trial.here.blocks, there.blocks) < _TRIAL_BLOCKS
        if took_s < (1.0 if there.is_full else _TRIAL_S) or (few and took_s < _LONGEST_TRIAL_S):
            return []
        made = there.published / max(there.made_s, 1e-9)
        if made < _GAIN * trial.rate:
            return self.fail(now, f"it made {made:,.0f} samples/s, and this feed {trial.rate:,.0f}")
        if waited_s < took_s / 2 or len(moved_on) < len(here):
            return self.fail(now, "this feed was hindered by it")
        return self._passed(now, movers)

    def fail(self, now: float, why: str) -> list[Decision]:
        """End the trial: nobody moves."""
        assert self.trial is not None
        trial, self.trial, self.refused = self.trial, None, why
        self._be_quiet(now, 4, stops=bool(trial.stopped))
        return [GiveUp(trial.to, why)]

    def _passed(self, now: float, movers: tuple[int, ...]) -> list[Decision]:
        assert self.trial is not None
        trial, self.trial = self.trial, None
        self.children.append(trial.to)
        self._be_quiet(now, 2)
        return [Leave(trial.to, movers, bool(trial.stopped))]

    def _returning(self, now: float, feed: FeedSeen, kin: Mapping[str, KinSeen]) -> Iterator[Decision]:
        mine = self.slowest
        for name in [*self.children]:
            child = kin.get(name)
            if child is None or child.alone is None or not mine:
                self._returns_since.pop(name, None)
                continue
            both = min(mine, child.alone, self.rate + child.rate)
            slow = (self.is_busy and self.rate < _LOSS * both) or (child.busy and child.rate < _LOSS * both)
            is_ahead = child.slowest >= min(each.place for each in feed.members)
            if not slow or not is_ahead or child.front - feed.front > _PAYS_BACK_S * both:
                self._returns_since.pop(name, None)
            elif now - self._returns_since.setdefault(name, now) >= _RETURNS_AFTER_S:
                self._be_quiet(now, 4)
                self._returns_since[name] = now + self._patience_s
                yield Return(name)

    def _joining(self, now: float, feed: FeedSeen, kin: Mapping[str, KinSeen]) -> Iterator[Decision]:
        for member in feed.members:
            to = self._found(member, feed, kin)
            if self._found_since.get(member.id, (None, now))[0] != to:
                self._found_since[member.id] = to, now
            if to is not None and now - self._found_since[member.id][1] < _HOLDS_S:
                to = None
            if to != self._joins.get(member.id):
                self._joins[member.id] = to
                yield Join(member.id, to)

    def _found(self, member: MemberSeen, feed: FeedSeen, kin: Mapping[str, KinSeen]) -> str | None:
        alone = self.alone(member.id)
        if not alone or not member.moves or (self.trial is not None and member.id in self.trial.movers):
            return None
        found: list[tuple[float, float, str]] = []
        slowest = min(each.place for each in feed.members)
        for name, other in kin.items():
            is_ahead = other.slowest > slowest and other.front > member.place + member.left
            if other.settled and other.alone and is_ahead:
                both = min(alone, other.alone, self.rate + other.rate + self._spare(feed))
                if both >= _LOSS * max(self.rate, other.rate):
                    found.append((both, other.front, name))
        return max(found)[2] if found else None
