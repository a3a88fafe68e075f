"""Every epoch of every trainer holds each sample once, whatever happens: a model in random histories."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest

from penstock.contracts import NO_JOINTS, Cursor, Ids, Joints, Known, last_read
from penstock.feed.feeder.joints import FeedJoints
from penstock.sources.order import Order
from penstock.sources.tables.shuffle_windows import ShuffleWindows

SAMPLES, BLOCK = 24, 2
SEGMENTS = {False: (), True: (12,)}


@cache
def base(cycle: int) -> Ids:
    return np.random.default_rng([7, cycle]).permutation(SAMPLES)


GROUPS = np.array([3, 1, 4, 1, 5, 2, 6, 2])
WINDOWS = ShuffleWindows(GROUPS, GROUPS * 10, 70, BLOCK, 7, shuffle=True)
ORDERS = {always: Order(SAMPLES, BLOCK, len(always) + 1, 7, shuffle=True) for always in SEGMENTS.values()}


@cache
def order(joints: Joints, cycle: int, always: tuple[int, ...]) -> Ids:
    """The order of a cycle by its definition: the loader's own, grouped by where samples lay in the one before."""
    ids = base(cycle)
    places = set(joints.of(cycle)) | set(always if cycle else ())
    if places:
        part = np.empty(SAMPLES, np.int64)
        part[order(joints, cycle - 1, always)] = np.searchsorted(sorted(places), np.arange(SAMPLES), "right")
        ids = ids[np.argsort(part[ids], kind="stable")]
    return ids


class Feed:
    """A feeder's joints, and whose epochs began where; sample after sample, or by shuffle windows."""

    def __init__(self, always: tuple[int, ...], *, by_windows: bool = False) -> None:
        self.always = always
        self.by_windows = by_windows
        self.joints = FeedJoints(SAMPLES, always, BLOCK, starts=WINDOWS.starts if by_windows else None)
        self.readers: dict[int, Trainer] = {}
        self.order = ORDERS[always]
        self.goes_on_at: tuple[Cursor, Joints] | None = None  # where the pass of the windows is that is open

    @property
    def began(self) -> list[int]:
        return [trainer.start.sample for trainer in self.readers.values()]

    def tell(self) -> None:
        """Tell all who read of joints: before the first block of a cycle with others, and whenever one starts."""
        for trainer in self.readers.values():
            trainer.known = self.joints.since(trainer.start.cycle, self.began)

    def ids(self, at: Cursor) -> list[int]:
        if self.joints.open(at.cycle, self.began):
            self.tell()
        if self.by_windows:
            if at.sample == 0 or self.goes_on_at != (at, self.joints.joints):
                self.blocks = WINDOWS.blocks(at, self.joints.joints)
            _, sample, block, _ = next(self.blocks)
            self.goes_on_at = at.after(len(block), SAMPLES), self.joints.joints
            assert sample == at.sample
            return block.tolist()
        ids = self.order.ids(at.cycle, self.joints.joints, base)
        assert ids.tolist() == order(self.joints.joints, at.cycle, self.always).tolist()
        return ids[at.sample : at.sample + BLOCK].tolist()

    def place(self, first: Cursor, apart: int) -> Cursor:
        """Return where a trainer begins that may begin from a place on."""
        oldest = min((trainer.start.cycle for trainer in self.readers.values()), default=0)
        return self.joints.place(first, self.began, apart, oldest)


@dataclass
class Trainer:
    number: int
    home: int  # number of the feed of the family
    feed: Feed
    start: Cursor
    at: Cursor
    seen: list[int] = field(default_factory=list[int])
    known: Known = Known()  # noqa: RUF009 - it is immutable
    is_apart: bool = False

    def read(self) -> None:
        """Read a block; at the end of its epoch begin the next one, a cycle on."""
        ids = self.feed.ids(self.at)
        self.seen += ids
        self.at = self.at.after(len(ids), SAMPLES)
        if len(self.seen) == SAMPLES:
            assert sorted(self.seen) == list(range(SAMPLES)), self
            following = Cursor(self.start.cycle + 1, self.start.sample)
            self.start, self.at, self.seen = following, following, []
            feed = self.feed
            if not self.known.may_begin(following, feed.always, at_joints=feed.by_windows):  # it was brought back
                self.begin(Cursor(following.cycle + 1, 0))

    def begin(self, at: Cursor) -> None:
        self.start, self.at, self.seen = at, at, []
        self.feed.readers[self.number] = self
        self.feed.tell()

    def go_on(self, feed: Feed) -> bool:
        """Go on under another feeder, or on a feed of its own; return whether the former."""
        self.is_apart = not self.comes_to(feed)
        if self.is_apart:
            assert self.comes_to(Feed(feed.always, by_windows=feed.by_windows))
        return not self.is_apart

    def comes_to(self, feed: Feed, *, by_itself: bool = False) -> bool:
        """Go on under another feeder, if it has the rest of the epoch in the same order."""
        known = self.known.read_on(self.at, self.start)
        known = known._replace(alive=()) if by_itself else known
        if not feed.joints.admit(self.at, self.start, known, feed.began):
            return False
        self.feed = feed
        feed.readers[self.number] = self
        feed.tell()
        return True

    def leave(self, feed: Feed, home: int) -> None:
        """Read on on another feed of the family, or stay."""
        old = self.feed
        if self.comes_to(feed, by_itself=True):
            del old.readers[self.number]
            self.home = home


class History:
    """Trainers and feeders of a family, as chance has them."""

    def __init__(self, seed: int, *, by_windows: bool) -> None:
        self.choose = random.Random(seed)
        self.apart = self.choose.choice([BLOCK, 3 * BLOCK])
        self.feeds = {0: Feed(SEGMENTS[not by_windows and self.choose.random() < 0.3], by_windows=by_windows)}
        self.trainers: list[Trainer] = []
        self.lost: list[Trainer] = []  # who has yet to come to a new feeder
        self.saved: list[Trainer] = []
        self.numbers = self.epochs = self.went_apart = self.parted = 0
        self.left = self.stayed = self.returned = self.refused = 0

    def new(self) -> Feed:
        feed = next(iter(self.feeds.values()))
        return Feed(feed.always, by_windows=feed.by_windows)

    def on(self, home: int) -> list[Trainer]:
        return [t for t in self.trainers if t.home == home and not t.is_apart]

    def newcomers_place(self, home: int, not_before: Cursor) -> Cursor:
        places = [t.at for t in self.on(home)] or [Cursor(0, 0)]
        first = max(not_before, self.choose.choice([min(places), max(places)]))
        return self.feeds[home].place(first, self.apart)

    def join(self) -> None:
        self.numbers += 1
        home = self.choose.choice([*self.feeds])
        at = self.newcomers_place(home, Cursor(0, 0))
        self.trainers.append(Trainer(self.numbers, home, self.feeds[home], at, at))
        self.trainers[-1].begin(at)

    def read(self) -> None:
        trainer = self.choose.choice(self.trainers)
        for _ in range(self.choose.randrange(1, SAMPLES)):
            began = trainer.start
            trainer.read()
            if trainer.start != began:
                self.epochs += 1
                if trainer.is_apart:
                    self.come_again(trainer)
                    return

    def break_off(self) -> None:
        self.come_again(self.choose.choice(self.trainers))

    def come_together(self) -> None:
        """Begin an epoch on another feed of the family."""
        if between := [t for t in self.trainers if t.at == t.start]:
            trainer = self.choose.choice(between)
            trainer.home = self.choose.choice([*self.feeds])
            self.come_again(trainer)

    def come_again(self, trainer: Trainer) -> None:
        del trainer.feed.readers[trainer.number]
        trainer.is_apart, trainer.feed = False, self.feeds[trainer.home]
        trainer.begin(self.newcomers_place(trainer.home, trainer.at))

    def part(self) -> None:
        """Let some leave a feed for a new one, which prepares from the place of the last of them."""
        home = self.choose.choice([*self.feeds])
        amid = [t for t in self.on(home) if t.at != t.start]
        if len(self.on(home)) < 2 or not amid:
            return
        leave = self.choose.sample(amid, self.choose.randrange(1, len(amid) + 1))
        last, feed, there = min(leave, key=lambda t: t.at), self.new(), max(self.feeds) + 1
        assert feed.joints.admit(last.at, last.start, last.known.read_on(last.at, last.start), [])
        to_come = Trainer(-1, there, feed, last.start, last.at)
        feed.readers[-1] = to_come
        for _ in range(self.choose.randrange(SAMPLES)):
            to_come.at = to_come.at.after(len(feed.ids(to_come.at)), SAMPLES)
        self.feeds[there] = feed
        for trainer in self.on(home):  # they read on while the new feed is started and tried
            for _ in range(self.choose.randrange(4)):
                trainer.read()
        for trainer in leave:
            trainer.leave(feed, there)
        self.stayed += sum(trainer.home == home for trainer in leave)
        self.left += sum(trainer.home == there for trainer in leave)
        del feed.readers[-1]
        feed.joints.forget()
        self.parted += bool(feed.readers)

    def go_back(self) -> None:
        """Let all of a feed that has parted go back to another, amid their epochs."""
        home, to = self.choose.choice([*self.feeds]), self.choose.choice([*self.feeds])
        for trainer in self.on(home) if home != to else []:
            trainer.leave(self.feeds[to], to)
            self.returned += trainer.home == to
            self.refused += trainer.home == home

    def end_feed(self) -> None:
        """End a feed of the family that nobody reads."""
        read = {t.home for t in [*self.trainers, *self.lost]}
        for home in [home for home in self.feeds if home not in read][: len(self.feeds) - 1]:
            del self.feeds[home]

    def die(self) -> None:
        trainer = self.trainers.pop(self.choose.randrange(len(self.trainers)))
        del trainer.feed.readers[trainer.number]

    def feeder_dies(self) -> None:
        home = self.choose.choice([*self.feeds])
        self.feeds[home] = self.new()
        self.lost += self.on(home)
        self.trainers = [trainer for trainer in self.trainers if trainer not in self.on(home)]

    def come_back(self) -> None:
        self.goes_on(self.lost.pop(self.choose.randrange(len(self.lost))))

    def goes_on(self, trainer: Trainer) -> None:
        self.went_apart += not trainer.go_on(self.feeds[trainer.home])
        self.trainers.append(trainer)

    def save(self) -> None:
        t = self.choose.choice(self.trainers)
        cycle = last_read(t.at, t.start)
        known = Known(t.known.joints.deciding(cycle), cycle, t.known.alive)
        self.saved.append(Trainer(0, 0, t.feed, t.start, t.at, [*t.seen], known))

    def load(self) -> None:
        self.numbers += 1
        s, home = self.choose.choice(self.saved), min(self.feeds)
        self.goes_on(Trainer(self.numbers, home, self.feeds[home], s.start, s.at, [*s.seen], s.known))

    def step(self) -> None:
        steps = [self.join] * (len(self.trainers) < 5)
        if self.trainers:
            steps += [self.read] * 12 + [self.break_off, self.die, self.feeder_dies, self.save]
            steps += [self.part, self.go_back, self.come_together, self.end_feed]
        steps += [self.come_back] * 6 * bool(self.lost) + [self.load] * bool(self.saved)
        self.choose.choice(steps or [self.come_back])()


@pytest.mark.parametrize(
    "seeds",
    [*(range(i, i + 25) for i in range(0, 200, 25)), pytest.param(range(1_000, 6_000), marks=pytest.mark.soak)],
)
@pytest.mark.parametrize("by_windows", [False, True])
def test_each_epoch_holds_every_sample_once(seeds: range, by_windows: bool) -> None:
    histories = [History(seed, by_windows=by_windows) for seed in seeds]
    for history in histories:
        for _ in range(120):
            history.step()
    epochs, left, stayed, returned, refused, apart = (
        sum(getattr(history, name) for history in histories)
        for name in ("epochs", "left", "stayed", "returned", "refused", "went_apart")
    )
    assert epochs > 20 * len(seeds)
    assert left > 2 * len(seeds)
    assert stayed < left / 20, "who would leave for a feed finds another order there"
    assert refused < 1.5 * returned, "who would come back finds another order there"
    assert apart < epochs / 30, "who has lost a feeder reads on apart"


@pytest.mark.parametrize("seed", range(4))
def test_feeds_that_part_keep_the_joints_of_their_own_trainers_only(seed: int) -> None:
    history = History(seed, by_windows=False)
    joints = 0
    while history.parted < 30:
        steps = [history.join] * (len(history.trainers) < 5)
        if history.trainers:
            steps += [history.read] * 12 + [history.break_off, history.die, history.end_feed]
            steps += [history.part, history.go_back, history.come_together]
        history.choose.choice(steps)()
        for feed in history.feeds.values():
            alive = set(feed.joints.since(feed.joints.opened, feed.began).alive)
            assert alive <= set(feed.began)
            joints += len(alive)
    assert joints > 300, "it showed nothing"


def reading(feed: Feed, *starts: int) -> None:
    """Let trainers read that began at these places of cycle 0."""
    feed.readers = {i: Trainer(i, 0, feed, Cursor(0, at), Cursor(0, at)) for i, at in enumerate(starts)}


def test_without_joints_a_cycle_is_the_loaders_own() -> None:
    feed = Feed(())
    found = [feed.ids(Cursor(cycle, 0)) for cycle in range(6)]
    assert found == [base(cycle)[:BLOCK].tolist() for cycle in range(6)]
    assert feed.joints.joints == NO_JOINTS


def test_a_joint_goes_with_its_trainer() -> None:
    feed = Feed(())
    reading(feed, 0, 10)
    feed.ids(Cursor(1, 0))
    kept = feed.order.ids(1, feed.joints.joints, base)
    assert set(kept[:10].tolist()) == set(base(0)[:10].tolist())
    assert kept.tolist() != base(1).tolist()
    reading(feed, 0)
    feed.ids(Cursor(2, 0))
    assert feed.order.ids(2, feed.joints.joints, base).tolist() == base(2).tolist()


def test_what_decides_an_order_does_not_grow_where_trainers_come_and_go() -> None:
    feed = Feed((12,))
    for cycle in range(1, 100):
        reading(feed, 4, *([8] if cycle % 2 else []))
        feed.ids(Cursor(cycle, 0))
    assert len(feed.joints.joints.deciding(99).changes) <= 3


def test_a_newcomer_keeps_off_other_joints_and_the_cycles_ends() -> None:
    feed = Feed(())
    reading(feed, 12)
    assert feed.place(Cursor(0, 2), 6) == (0, 6)
    assert feed.place(Cursor(0, 8), 6) == (0, 12)
    assert feed.place(Cursor(0, 14), 6) == (0, 18)
    assert feed.place(Cursor(0, 20), 6) == (1, 0)
    feed.ids(Cursor(1, 0))
    assert feed.place(Cursor(0, 14), 6) == (1, 0)  # the next cycle's order is fixed


def test_who_overlap_for_ever_never_make_more_changes_than_a_trainer_takes():
    joints, began = FeedJoints(100_000, ()), list[int]()
    for cycle in range(1, 2_000):
        place = joints.place(Cursor(cycle - 1, cycle * 7_919 % 90_000), began, 100)
        began = [*began[-2:], place.sample]
        joints.open(cycle, began)
        assert joints.since(cycle - 2, began).fits(100_000)


def test_the_first_back_at_the_beginning_of_an_epoch_knows_the_joints_of_the_others():
    joints = FeedJoints(600, ())
    assert joints.admit(Cursor(7, 0), Cursor(7, 0), Known(Joints(((3, (300,)),)), 3, (300,)), [])
    joints.open(7, [0])
    assert joints.admit(Cursor(7, 100), Cursor(6, 300), Known(Joints(((3, (300,)),)), 7, (300,)), [0])


def test_ranks_are_not_begun_where_another_one_knows_the_cycle_in_another_order():
    joints = FeedJoints(600, ())
    amid = Known(Joints(((2, (200,)), (3, (200, 400)), (4, (200,)))), 4)
    assert joints.admit(Cursor(4, 60), Cursor(3, 200), amid, [])
    assert joints.gives(Cursor(3, 200), amid)
    other = FeedJoints(600, ())
    other.joints, other.opened = Joints(((2, (200,)),)), 3
    assert not other.gives(Cursor(3, 200), amid)
