"""A fluid model of trainings that share feeds, in which ``Parting`` itself decides."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count, pairwise

from penstock.feed.feeder import parting
from penstock.feed.feeder.parting import Parting
from penstock.feed.feeder.seen import FeedSeen, KinSeen, MemberSeen

STEP_S = 0.25
START_S = 4.0
BLOCK = 16
NICED = 0.15  # the share of a new feed's processes, of another's


@dataclass
class World:
    """What runs train, and what they share."""

    rates: Sequence[float]  # samples/s that each run can train
    cores: float = 8
    sample_s: float = 0.003  # CPU time to prepare a sample, and to train on it
    train_s: float = 0.0002
    nbytes: int = 150_528  # of a sample
    epoch: int = 200_000
    window: int = 512 << 20
    factor: Callable[[int, float], float] = lambda run, now: 1.0  # of a run's rate, at a time; 0: stopped
    limit: Callable[[float], float] = lambda now: float("inf")  # samples/s of all feeds together
    begins: Callable[[int], float] = lambda run: 0.0
    ends: Callable[[int], float] = lambda run: float("inf")  # after so many samples
    validates_s: float = 0.0
    validates_each: float = 0.0  # samples; 0: at the ends of epochs
    hindered: float = 1.0  # of the runs' rates, where there are two feeds: for they compute, and cores are few
    seen_busy: float = 1.0  # the part of its time busy that a run shows when it waits


@dataclass
class Run:
    number: int
    feed: str = ""
    place: float = 0.0
    began: float = 0.0  # place where its epoch did
    passed: float = 0.0
    waited_s: float = 0.0
    noise: float = 0.0
    pause_until: float = 0.0
    between: bool = False
    joins: str | None = None
    has_some: bool = False


@dataclass
class Feed:
    name: str
    policy: Parting
    front: float
    start: float = 0.0
    serves_at: float = 0.0
    settled: bool = True
    published: float = 0.0
    room_s: float = 0.0
    idle_s: float = 0.0
    made_s: float = 0.0
    cpu_s: float = 0.0
    room: float = 0.0
    looked: float = 0.0


def shares(wants: dict[str, float], total: float, niced: Sequence[str] = ()) -> dict[str, float]:
    """Share a total; who wants less leaves the rest to the others, and the niced get less."""
    weights = {each: NICED if each in niced else 1.0 for each in wants}
    given, hungry = dict.fromkeys(wants, 0.0), set(wants)
    while hungry and total > 1e-12:
        unit = total / sum(weights[each] for each in hungry)
        done = {each for each in hungry if wants[each] <= unit * weights[each] + 1e-12}
        for each in done or hungry:
            given[each] = wants[each] if done else unit * weights[each]
            total -= given[each]
        hungry = hungry - done if done else set()
    return given


class Simulation:
    """One world over some time; without ``paced`` all stay on one feed."""

    def __init__(self, world: World, *, paced: bool = True, seed: int = 0) -> None:
        self.world, self.paced, self.now, self._random = world, paced, 0.0, random.Random(seed)
        self.runs = [Run(number) for number in range(len(world.rates))]
        self.feeds: dict[str, Feed] = {}
        self.decided: list[tuple[float, str, parting.Decision]] = []
        self._trained_cores = self._used_cores = 0.0
        self._add("root", 0.0)

    def run(self, seconds: float) -> list[float]:
        """Return what each run has passed."""
        while self.now < seconds:
            self.now += STEP_S
            for run in self.runs:
                if not run.feed and self.now >= self.world.begins(run.number):
                    feed = self.feeds.get("root") or max(self.feeds.values(), key=lambda each: len(self._of(each)))
                    run.feed, run.place, run.began = feed.name, feed.front, feed.front
            self._prepare()
            for run in [*self._active()]:
                self._train(run)
            for feed in [*self.feeds.values()]:
                if feed.name in self.feeds and feed.settled:
                    if not self._of(feed) and len(self.feeds) > 1:
                        del self.feeds[feed.name]
                    elif self.paced and (self.now - feed.looked >= 1 or feed.policy.trial):
                        feed.looked = self.now
                        self._look(feed)
        return [run.passed for run in self.runs]

    def _add(self, name: str, front: float, *, serves_at: float = 0.0) -> None:
        names = (f"{name}.{number}" for number in count(1))
        policy = Parting(lambda: next(names), self.now, is_new=serves_at > 0)
        self.feeds[name] = Feed(name, policy, front, front, serves_at, not serves_at)

    def _active(self) -> Iterator[Run]:
        return (run for run in self.runs if run.feed and run.passed < self.world.ends(run.number))

    def _of(self, feed: Feed) -> list[Run]:
        return [run for run in self._active() if run.feed == feed.name]

    def _prepare(self) -> None:
        world, wants, full = self.world, dict[str, float](), set[str]()
        window = world.window / world.nbytes
        for feed in self.feeds.values():
            runs, most = self._of(feed), feed.front
            if not feed.settled:
                feed.room = feed.start + window / 2 - feed.front
                most = feed.front + feed.room if self.now >= feed.serves_at else feed.front
            elif runs:
                feed.room = min(feed.front, *(run.place for run in runs)) + window - feed.front
                ahead = max(run.place for run in runs) + 1024 + max(world.rates[run.number] for run in runs) / 2
                most = min(feed.front + feed.room, ahead)
                full |= {feed.name} if most == feed.front + feed.room else set()
            wants[feed.name] = max(0.0, most - feed.front)
        cores = max(0.05, world.cores - self._trained_cores)
        niced = [feed.name for feed in self.feeds.values() if feed.serves_at]
        cpu = shares({each: want * world.sample_s / STEP_S for each, want in wants.items()}, cores, niced)
        by_cpu = {each: cpu[each] * STEP_S / world.sample_s for each in wants}
        given = shares(by_cpu, world.limit(self.now) * STEP_S)
        for feed in self.feeds.values():
            want, got = wants[feed.name], given[feed.name]
            feed.front, feed.published, feed.cpu_s = (
                feed.front + got,
                feed.published + got,
                feed.cpu_s + got * world.sample_s,
            )
            spare_s = (
                STEP_S * (1 - min(1.0, got * world.sample_s / (cores * STEP_S))) if got >= want - 1e-9 else 0.0
            )
            feed.made_s += STEP_S - spare_s if want else 0.0
            feed.room_s += spare_s if feed.name in full else 0.0
            feed.idle_s += 0.0 if feed.name in full else spare_s
        self._trained_cores = 0.0
        self._used_cores = sum(given.values()) * world.sample_s / STEP_S

    def _train(self, run: Run) -> None:
        world, there = self.world, max(0.0, self.feeds[run.feed].front - run.place)
        run.noise += -run.noise * STEP_S / 10 + 0.05 * (STEP_S / 5) ** 0.5 * self._random.gauss(0, 1)
        rate = world.rates[run.number] * world.factor(run.number, self.now) * (1 + run.noise)
        rate *= world.hindered if len(self.feeds) > 1 else 1  # in a trial, too
        if self.now < run.pause_until or not rate:
            run.has_some = there > 1
            return
        left, run.between = world.epoch - (run.place - run.began), False
        take, before = min(rate * STEP_S, there, left), run.passed
        waits_s = STEP_S * (1 - take / (rate * STEP_S)) if take < left else 0.0
        run.waited_s += waits_s + (STEP_S - waits_s) * (1 - world.seen_busy) * (waits_s > 0)
        run.place, run.passed, run.has_some = run.place + take, run.passed + take, there - take > 1
        self._trained_cores += take / STEP_S * world.train_s
        if (each := world.validates_each) and run.passed // each > before // each:
            run.pause_until = self.now + world.validates_s
        if take >= left - 1e-6:
            run.began = run.place
            if world.validates_s and not each:
                run.pause_until, run.between = self.now + world.validates_s, True
            if run.joins in self.feeds and self.feeds[run.joins].front > run.place:
                run.feed, run.place = run.joins, self.feeds[run.joins].front
                run.began = run.place
            run.joins = None

    def _look(self, feed: Feed) -> None:
        members = [
            MemberSeen(
                run.number,
                run.passed,
                run.waited_s,
                run.place,
                0.0 if run.between else self.world.epoch - (run.place - run.began),
                run.has_some,
            )
            for run in self._of(feed)
        ]
        idle = max(0.0, self.world.cores - self._used_cores - self._trained_cores)
        totals = feed.published, feed.published / BLOCK, feed.room_s, feed.idle_s, feed.front, feed.room
        seen = FeedSeen(*totals, members, feed.cpu_s, idle, start_s=START_S)
        others = [each for each in self.feeds.values() if each is not feed and self.now >= each.serves_at]
        for decision in feed.policy.look(self.now, seen, {each.name: self._kin(each) for each in others}):
            self.decided.append((self.now, feed.name, decision))
            match decision:
                case parting.StartFeed(to, movers):
                    place = min(self.runs[number].place for number in movers)
                    self._add(to, place, serves_at=self.now + START_S)
                case parting.Leave(to, moved, _):
                    self._add(to, self.feeds[to].front, serves_at=self.now)
                    self.feeds[to].settled = True
                    self._send([self.runs[number] for number in moved], to)
                case parting.GiveUp(to, _):
                    del self.feeds[to]
                case parting.Return(child):
                    self._send(self._of(self.feeds[child]), feed.name)
                case parting.Join(member, to):
                    self.runs[member].joins = to

    def _send(self, runs: Sequence[Run], to: str) -> None:
        for run in runs:
            run.feed = to

    def _kin(self, feed: Feed) -> KinSeen:
        policy, runs, made = feed.policy, self._of(feed), (feed.published, feed.published / BLOCK)
        if not feed.settled:
            return KinSeen(False, *made, 0.0, False, None, feed.front, feed.front, feed.made_s, feed.room <= 1)
        slowest = min((run.place for run in runs), default=feed.front)
        return KinSeen(bool(runs), *made, policy.rate, policy.is_busy, policy.slowest, slowest, feed.front)


@cache
def _divisions(runs: int) -> list[list[tuple[int, int]]]:
    """All ways to cut a row of runs into groups, those of fewer groups first."""
    cuts = ([i + 1 for i in range(runs - 1) if bits >> i & 1] for bits in range(2 ** (runs - 1)))
    return sorted(([*pairwise([0, *each, runs])] for each in cuts), key=len)


def best(world: World, seconds: float) -> list[float]:
    """What each run would have passed under the best division at each moment, for nothing."""
    passed, pauses, known = (
        [0.0] * len(world.rates),
        [0.0] * len(world.rates),
        dict[tuple[float, ...], list[float]](),
    )
    each, step_s = world.validates_each or world.epoch, 5.0
    for now in (step * step_s for step in range(int(seconds / step_s))):
        there = [now >= world.begins(i) and passed[i] < world.ends(i) for i in range(len(passed))]
        rates = [rate * world.factor(i, now) * there[i] for i, rate in enumerate(world.rates)]
        key = (*rates, world.limit(now))
        got = known.setdefault(key, known.get(key) or _best_now(world, rates, world.limit(now)))
        for i, rate in enumerate(got):
            rest = min(pauses[i], step_s)
            before, passed[i] = passed[i], passed[i] + rate * (step_s - rest)
            pauses[i] += -rest + (world.validates_s if passed[i] // each > before // each else 0.0)
    return passed


def _best_now(world: World, rates: Sequence[float], limit: float) -> list[float]:
    ranked = sorted((i for i, rate in enumerate(rates) if rate), key=lambda i: -rates[i])
    runs, found, most = len(ranked), [0.0] * len(rates), -1.0

    def rates_of(cut: Sequence[tuple[int, int]]) -> list[float]:
        wants = {str(first): min(rates[i] for i in ranked[first:last]) for first, last in cut}
        trained = sum(wants[str(first)] * (last - first) for first, last in cut) * world.train_s
        given = shares(wants, min(max(0.05, world.cores - trained) / world.sample_s, limit))
        return [given[str(first)] for first, last in cut for _ in range(first, last)]

    if not ranked:
        return found
    one, own = rates_of([(0, runs)]), rates_of([(i, i + 1) for i in range(runs)])
    for cut in _divisions(runs):
        got = rates_of(cut)
        fair = all(g >= 0.95 * max(a, b) - 1e-9 for g, a, b in zip(got, one, own, strict=True)) or len(cut) == 1
        value = sum(g / rates[i] for g, i in zip(got, ranked, strict=True))
        if fair and value > most + 1e-6:
            most, found = value, [0.0] * len(rates)
            for g, i in zip(got, ranked, strict=True):
                found[i] = g
    return found
