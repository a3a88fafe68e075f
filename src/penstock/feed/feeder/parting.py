"""When trainers of a feed read on on one of their own, and when they come together again: the policy alone.

Each feeder decides for its own trainers, and for those that left it. Nobody leaves before a dry trial: the new
feed prepares beside the old one, which all go on reading, and must show that both make more together.
Decision 34 has the model. Times are in seconds of one monotonic clock, places in samples from the first cycle on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import NamedTuple

from penstock.feed.feeder.seen import MEASURED_S, RECENT_S, Alone, Course, FeedSeen, KinSeen, MemberSeen

_GAIN = 1.06
"""A split must let those who leave go faster by this factor; together again, nobody may go below ``_LOSS``."""
_LOSS = 0.95
_HOLDS_S, _RETURNS_AFTER_S, _HINDERS_S = 10.0, 6.0, 60.0
_TRIAL_S, _LONGEST_TRIAL_S, _TRIAL_BLOCKS = 3.0, 10.0, 8
_HINDERED, _BEYOND_CHANCE = 0.9, 5.0
"""Who stays trains at least at this part of its rate before, or so many deviations of chance below it."""
_NEW_S, _START_S = 20.0, 60.0
_LEAST_WAITING = 0.05
_PAYS_BACK_S = 300.0
_PATIENCE_S, _MOST_PATIENCE_S, _HALVED_EACH_S = 30.0, 3600.0, 900.0


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
    why: str


class Join(NamedTuple):
    """Have a trainer begin its next epoch on a feed; None for here."""

    member: int
    to: str | None


Decision = StartFeed | Leave | GiveUp | Return | Join


@dataclass
class _Trial:
    to: str
    movers: tuple[int, ...]
    stopped: tuple[int, ...]  # members that take nothing, for which the others would leave
    began: float
    rate: float  # of this feed, before
    slowest: int  # the slowest of those that stay; its rate before, and how far parts of 5 s differed from that
    pace: float
    spread: float
    serves: float | None = None  # since when the new feed does
    here: FeedSeen | None = None  # this one, as it began to


@dataclass
class _Parted:
    """A feed that has left this one."""

    at: float
    slowest: int  # as in its trial
    rate: float
    spread: float
    worse_since: float | None = None


class Parting:
    """Decides for the trainers of one feed; ``look`` is called each second, and four times as often in a trial."""

    def __init__(self, next_name: Callable[[], str], now: float, *, is_new: bool = False) -> None:
        self._next_name = next_name  # names a feed that is to be started
        self._quiet_until = now + _NEW_S if is_new else now
        self._waits_for_stops = is_new  # whether one that stops is to be left only when it is quiet no more
        self._patience_s, self._patience_since = _PATIENCE_S, now
        self._alone: dict[int, Alone] = {}
        self._course = Course(4)
        self._splits_since: float | None = None
        self._found_since: dict[int, tuple[str | None, float]] = {}  # which feed a member could join, since when
        self._joins: dict[int, str | None] = {}  # where members were told to begin their next epochs
        self._room_s, self._had_no_room = 0.0, now  # waited for room in all, and when it last did
        self.trial: _Trial | None = None
        self.children: dict[str, _Parted] = {}  # feeds that have left this one, by name
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
        return self._rate(RECENT_S)

    @property
    def is_busy(self) -> bool:
        """Whether it has waited neither for room nor for its readers of late."""
        took_s, _, room_s, idle_s, _ = self._course.over(RECENT_S)
        return took_s >= RECENT_S / 2 and room_s + idle_s <= _LEAST_WAITING * took_s

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
                self._alone[id] = Alone(now, seen)
        while now - self._patience_since >= _HALVED_EACH_S:
            self._patience_s = max(_PATIENCE_S, self._patience_s / 2)
            self._patience_since += _HALVED_EACH_S

    def _be_quiet(self, now: float, times: int, *, stops: bool = True) -> None:
        self._quiet_until, self._waits_for_stops = now + self._patience_s, stops
        self._patience_s, self._patience_since = min(_MOST_PATIENCE_S, self._patience_s * times), now
        self._splits_since = None

    def _spare(self, feed: FeedSeen) -> float:
        _, published, _, _, cpu_s = self._course.over(MEASURED_S)
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
        took_s, published, room_s, _, _ = self._course.over(MEASURED_S)
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
        stay = [(alone.samples_per_s or inf, id) for id, alone in self._alone.items() if id not in movers]
        slowest = min(stay, default=(inf, -1))[1]
        own = self._alone[slowest].rate_and_spread() if stay else (0.0, 0.0)
        self.trial = _Trial(self._next_name(), movers, stopped, now, self._rate(MEASURED_S), slowest, *own)
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
        made, blocks = feed.published - trial.here.published, feed.blocks - trial.here.blocks
        in_work = made / max(1, blocks)  # a block that is being made
        keeps_up = made + in_work >= _LOSS * trial.rate * took_s
        if now - max(trial.serves, self._had_no_room) >= 1 and not keeps_up:
            return self.fail(now, "this feed was hindered by it")
        few = min(blocks, there.blocks) < _TRIAL_BLOCKS
        if took_s < (1.0 if there.is_full else _TRIAL_S) or (few and took_s < _LONGEST_TRIAL_S):
            return []
        makes = there.published / max(there.made_s, 1e-9)
        if makes < _GAIN * trial.rate:
            return self.fail(now, f"it made {makes:,.0f} samples/s, and this feed {trial.rate:,.0f}")
        if not (keeps_up or waited_s >= _LEAST_WAITING * took_s) or len(moved_on) < len(here):
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
        self.children[trial.to] = _Parted(now, trial.slowest, trial.pace, trial.spread)
        self._be_quiet(now, 2)
        return [Leave(trial.to, movers, bool(trial.stopped))]

    def _returning(self, now: float, feed: FeedSeen, kin: Mapping[str, KinSeen]) -> Iterator[Decision]:
        for name, parted in self.children.items():
            if not (why := self._is_worse(now, feed, parted, kin.get(name))):
                parted.worse_since = None
                continue
            parted.worse_since = now if parted.worse_since is None else parted.worse_since
            if now - parted.worse_since >= _RETURNS_AFTER_S:
                self._be_quiet(now, 4)
                parted.worse_since = now + self._patience_s
                yield Return(name, why)

    def _is_worse(self, now: float, feed: FeedSeen, parted: _Parted, child: KinSeen | None) -> str:
        """Return why one feed is better: two go slower, or the slowest does in its steps; empty if it is not."""
        if child is None or not (mine := self.slowest):
            return ""
        both = min(mine, mine if child.alone is None else child.alone, self.rate + child.rate)
        is_slow = (self.is_busy and self.rate < _LOSS * both) or (child.busy and child.rate < _LOSS * both)
        is_ahead = child.slowest >= min(each.place for each in feed.members)
        is_near = child.front - feed.front <= _PAYS_BACK_S * both
        if not is_ahead or not is_near:
            return ""
        if child.alone is not None and is_slow:
            return "both together are faster"
        return "a run there trains more slowly since" if self._hinders(now, parted) else ""

    def _hinders(self, now: float, parted: _Parted) -> bool:
        """Whether the slowest that stayed trains slower since then, by more than chance explains."""
        took_s, slowest = now - parted.at, self._alone.get(parted.slowest)
        if slowest is None or not _HOLDS_S <= took_s <= _HINDERS_S:
            return False
        took_s = min(took_s, MEASURED_S)
        chance = _BEYOND_CHANCE * parted.spread * sqrt(RECENT_S / took_s + RECENT_S / MEASURED_S)
        return slowest.rate_over(took_s) < parted.rate * min(_HINDERED, 1 - chance)

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
