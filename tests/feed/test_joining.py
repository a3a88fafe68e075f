"""Trainers that come, break off, resume and lose their feeder at any time: each epoch holds each sample once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from threading import Event
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import FeedNotFound
from penstock.feed import wire
from penstock.feed.endpoint import Endpoint
from penstock.feed.feeder.joints import APART_BATCHES
from penstock.feed.suffix import FeedOfRun
from penstock.feed.trainer.connection import FeedConnection, OpenRing
from penstock.feed.trainer.loader import Loader
from penstock.feed.trainer.options import loader_options
from penstock.fingerprint.comparison import Fingerprint

N, ROWS = 600, 5
OURS = Fingerprint("3 of-all")


def source(segments: int | None = None) -> penstock.ArraySource:
    return penstock.ArraySource({"id": np.arange(N)}, batch_size=ROWS, segments=segments or 1, seed=5)


class Feeders:
    """The feeders of a process: one is started where a trainer finds none, as ``share`` does."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._trainers: list[Trainer] = []
        self.running: dict[str, tuple[penstock.Feeder, threading.Thread]] = {}
        self.started: list[str] = []

    def _connect(
        self, group: str, hello: wire.Hello, open_ring: OpenRing, left: wire.Welcome | None
    ) -> FeedConnection:
        hello.group, name = group, left.name if left else "feed"
        with self._lock:  # ranks come back at once
            with suppress(FeedNotFound):
                return FeedConnection(Endpoint(name), hello, open_ring, 10)
            feeder = penstock.Feeder(self._make(), name, window="4MiB", prefetch=2, fingerprint=OURS)
            self.running[name] = feeder, threading.Thread(target=feeder.run)
            self.running[name][1].start()
            self.started.append(name)
            return FeedConnection(Endpoint(name), hello, open_ring, 10)

    def loader(self, batch_size: int, shard: tuple[int, int] | None = None, group: str = "") -> Loader:
        options = loader_options(batch_size, shard=shard)
        return Loader(partial(self._connect, group), options, FeedOfRun("feed"), prepare=lambda *_: None)

    def trainer(self, batch_size: int, batches: int = 0) -> Trainer:
        """Attach one that takes all samples, and has read so many batches."""
        trainer = Trainer(list(range(N)), self.loader(batch_size))
        self._trainers.append(trainer)  # who lets one go ends it
        if batches:
            trainer.read(batches)
        return trainer

    def die(self, name: str) -> None:
        """End one without a goodbye, as a kill would."""
        feeder, thread = self.running.pop(name)
        server: Any = feeder._server
        server._goodbye = lambda reason: setattr(server, "closing", reason)
        feeder.close("was killed")
        thread.join()

    def close(self) -> None:
        for feeder, thread in self.running.values():
            feeder.close()
            thread.join()


pytestmark = pytest.mark.usefixtures("stays")


@pytest.fixture
def feeds() -> Iterator[Feeders]:
    with closing(Feeders(source)) as made:
        yield made


class Trainer:
    """A trainer, or the ranks of one, that knows what its epoch must hold."""

    def __init__(self, wanted: list[int], *ranks: Loader) -> None:
        self.ranks = ranks
        self.wanted = wanted
        self.got: list[int] = []
        self.gives_up = self.reads = False
        self.epochs = 0
        self.begin()

    @property
    def loader(self) -> Loader:
        return self.ranks[0]

    def begin(self) -> None:
        self.loops = [iter(loader) for loader in self.ranks]

    def read(self, batches: int) -> None:
        if self.gives_up:  # the new loop begins with its first batch
            self.got, self.gives_up = [], False
        self.reads = True
        for _ in range(batches):
            given = [*self._each(lambda loop: next(loop, None))]
            if given[0] is not None:
                self.got += [id for batch in given for id in batch["id"].tolist()]
                continue
            assert sorted(self.got) == self.wanted
            assert not any(given)
            self.got = []
            self.epochs += 1
            self.begin()

    def _each(self, call: Callable[[Any], Any]) -> Iterator[Any]:
        """Call with each rank's loop, at once: ranks wait for one another."""
        if len(self.loops) == 1:
            return map(call, self.loops)
        with ThreadPoolExecutor(len(self.loops)) as pool:
            return pool.map(call, self.loops)

    def break_off(self) -> None:
        self.gives_up = self.reads  # else the rest of a loaded epoch comes in this loop
        self.begin()

    def select(self, ids: list[int]) -> None:
        for loader in self.ranks:
            loader.select(None if len(ids) == N else ids)
        self.wanted, self.got, self.gives_up = ids, [], False
        self.begin()

    def close(self) -> None:
        for loader in self.ranks:
            loader.close()

    def saved(self) -> Saved:
        return [loader.state_dict() for loader in self.ranks], [*self.got], self.wanted

    def load(self, saved: Saved) -> None:
        states, got, wanted = saved
        if self.wanted != wanted:
            self.select(wanted)
        for loader, state in zip(self.ranks, states, strict=True):
            loader.load_state_dict(state)
        self.begin()
        self.got = [*got] if states[0]["delivered"] else []
        self.gives_up = self.reads = False


Saved = tuple[list[dict[str, Any]], list[int], list[int]]


def saved_with_joints(feeds: Feeders, batches: int) -> Saved:
    """The state of one that came late, and had read so many batches when the feeder died with all its trainers."""
    early, late = feeds.trainer(5, 60), feeds.trainer(5, batches)
    saved = late.saved()
    assert saved[0][0]["joints"]["in_force"]
    for each in (early, late):
        each.close()
    feeds.die("feed")
    return saved


class History:
    """What happens to a feed, as chance has it."""

    def __init__(self, choose: random.Random, feeders: Feeders) -> None:
        self.choose = choose
        self.feeders = feeders
        self.trainers: list[Trainer] = []
        self.gone: list[Trainer] = []
        self.saved: list[Saved] = []

    def come(self) -> None:
        size = self.choose.choice([1, 2, 3])
        if self.choose.random() < 0.3:
            group = str(len(self.trainers) + len(self.gone))
            ranks = [self.feeders.loader(size, (rank, 2), group) for rank in range(2)]
        else:
            ranks = [self.feeders.loader(size)]
        self.trainers.append(Trainer(list(range(N)), *ranks))

    def read(self) -> None:
        """Let one read that is no window ahead of others, for which it would wait."""
        cycles = [(trainer.loader.state_dict()["start"] or [0])[0] for trainer in self.trainers]
        near = [trainer for trainer, cycle in zip(self.trainers, cycles, strict=True) if cycle < min(cycles) + 3]
        self.choose.choice(near).read(self.choose.randrange(1, 150))

    def break_off(self) -> None:
        self.choose.choice(self.trainers).break_off()

    def select(self) -> None:
        ids = list(range(N)) if self.choose.random() < 0.5 else sorted(self.choose.sample(range(N), 200))
        self.choose.choice(self.trainers).select(ids)

    def go(self) -> None:
        self.gone.append(self.trainers.pop(self.choose.randrange(len(self.trainers))))
        self.gone[-1].close()

    def save(self) -> None:
        self.saved.append(self.choose.choice(self.trainers).saved())

    def load(self) -> None:
        saved, trainer = self.choose.choice(self.saved), self.choose.choice(self.trainers)
        if len(saved[0]) == len(trainer.ranks):
            trainer.load(saved)

    def die(self) -> None:
        self.feeders.die(self.choose.choice([*self.feeders.running]))

    def live(self, steps: int) -> int:
        for _ in range(steps):
            can = [self.come] * (len(self.trainers) < 4)
            if self.trainers:
                can += [self.read] * 8 + [self.break_off, self.go, self.save, self.select]
                can += [self.die] * bool(self.feeders.running) + [self.load] * 2 * bool(self.saved)
            self.choose.choice(can)()
        for trainer in self.trainers:
            trainer.close()
        return sum(trainer.epochs for trainer in (*self.trainers, *self.gone))


@pytest.mark.whole
@pytest.mark.parametrize("segments", [None, 3])
@pytest.mark.parametrize("histories", [5, pytest.param(300, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_in_any_history_each_epoch_holds_each_sample_once(feeds, stays, capsys, segments, histories):
    feeds._make, epochs = partial(source, segments), 0
    for seed in range(histories):
        stays(0 if seed % 4 else 20)
        epochs += History(random.Random(f"{segments} {seed}"), feeds).live(60)
    assert epochs >= histories


def test_a_late_trainer_begins_at_once_and_only_it_makes_a_joint(feeds):
    first = feeds.trainer(3, 100)
    late = feeds.trainer(3, 1)
    start = late.loader.state_dict()["start"]
    assert start[0] == 0 and 300 <= start[1] < 300 + APART_BATCHES * 3
    first.read(302)
    late.read(401)
    assert (first.epochs, late.epochs) == (2, 2)
    feeder, _ = feeds.running["feed"]
    assert feeder._state.joints.joints.of(2) == (start[1],)
    late.loader.close()
    first.read(603)
    assert feeder._state.joints.joints.of(5) == (), "the joint has gone with its trainer"


def test_one_that_breaks_off_alone_begins_with_the_next_cycle(feeds):
    only = feeds.trainer(5)
    for epoch in range(3):
        only.read(30)
        assert only.loader.state_dict()["start"] == [epoch, 0]
        only.break_off()


def test_a_state_of_another_history_is_read_to_its_end_apart_and_then_at_home(feeds, capsys):
    saved = saved_with_joints(feeds, 100)
    feeds.trainer(5, 300)  # in an order of its own
    again = feeds.trainer(5)
    again.load(saved)
    again.read(21)
    assert again.epochs == 1 and len(feeds.started) == 3
    assert "on a feed of its own, feed-apart-" in capsys.readouterr().err
    again.read(121)
    assert again.epochs == 2 and again.loader.name == "feed"


def test_attach_says_that_it_cannot_go_apart(feeds):
    (state,), *_ = saved_with_joints(feeds, 100)
    other = feeds.trainer(5, 300)
    with penstock.attach("feed", 5) as loader:
        loader.load_state_dict(state)
        with pytest.raises(penstock.errors.SettingsDiffer, match="has gone on without what makes an epoch"):
            next(iter(loader))
    other.loader.close()


@pytest.mark.parametrize(
    "joints",
    [
        *(5, [[1]]),
        *({"alive": places} for places in ([600], [7, 5], [*range(1, 66)], ["a"])),
        *({"in_force": [[since, [place]]]} for since, place in (("a", 3), (2, 600), (2, 0), (-1, 5), (10**10, 5))),
        {"in_force": [[1]]},
        {"in_force": [[2, [5]], [1, [7]]]},
        {"in_force": [[i, [5 + i % 2]] for i in range(300)]},
    ],
)
def test_joints_of_a_state_that_no_feed_can_have_are_refused(feeds, joints):
    trainer = feeds.trainer(5, 10)
    with pytest.raises(penstock.errors.BadSetting, match="joints="):
        trainer.loader.load_state_dict({**trainer.loader.state_dict(), "joints": joints})
    trainer.loader.close()


def test_a_beginning_goes_where_its_room_is_needed_and_takes_a_quarter_of_the_window_at_most(feeds, stays):
    stays(20)
    feeds.trainer(3, 100)
    state = feeds.running["feed"][0]._state
    with feeds.running["feed"][0]._server.lock:
        kept = [block.at.sample for block in state.blocks.values() if block.stays]
        assert kept[:3] == [0, ROWS, 2 * ROWS]
        offset = state.reserve_ahead(state.room.capacity_bytes)
        assert not any(block.stays for block in state.blocks.values())
        if offset is not None:  # the trainer has read all that was there
            state.room.release(offset)


def test_two_that_break_off_at_one_step_stay_together(feeds, stays):
    stays(20)
    pair = [feeds.trainer(5) for _ in range(2)]
    starts: list[list[Any]] = []
    for _ in range(12):
        for _ in range(25):
            for each in pair:
                each.read(1)
        starts.append([each.loader.state_dict()["start"] for each in pair])
        for each in pair:
            each.break_off()
    assert all(one == other for one, other in starts)
    feeder, _ = feeds.running["feed"]
    handed_out, passed_over = 12 * 25 * 5, 3 * APART_BATCHES * 5  # near the ends of cycles none can begin
    assert feeder.statistics().samples <= handed_out + passed_over


def test_data_in_order_need_no_joints(feeds, stays):
    stays(20)
    feeds._make = lambda: penstock.ArraySource({"id": np.arange(N)}, batch_size=ROWS, shuffle=False)
    first = feeds.trainer(3, 100)
    late = feeds.trainer(3, 1)
    cycle, sample = late.loader.state_dict()["start"]
    assert cycle == 0 and sample <= 330
    first.read(302)
    late.read(401)
    assert (first.epochs, late.epochs) == (2, 2)
    assert [*np.diff(late.got)] == [1] * (len(late.got) - 1)
    late.loader.close()
    first.break_off()
    first.read(1)
    assert first.loader.state_dict()["start"][1] == 0, "alone, one begins with a cycle, as a DataLoader does"


def test_after_a_failover_the_first_trainer_back_knows_the_joints_of_the_others(feeds):
    first = feeds.trainer(3, 80)
    late = feeds.trainer(3, 20)
    place = late.loader.state_dict()["start"]
    feeds.die("feed")
    first.read(400)  # on the new feeder, beyond the cycle's end
    assert first.epochs == 2
    late.read(201)
    assert late.loader.name == "feed" and late.epochs == 1 and place[1] > 0


def test_beginnings_stay_though_the_next_cycle_is_read_ahead(feeds, stays):
    stays(20)
    first = feeds.trainer(3, 240)  # beyond the cycle's beginning
    first.read(3)
    second = feeds.trainer(3, 1)
    assert second.loader.state_dict()["start"] == [0, 0]


def test_a_state_far_ahead_of_a_feed_that_others_read_waits_for_nobody(feeds, capsys):
    old = feeds.trainer(5, 121 * 12 + 30)
    saved = old.saved()
    assert saved[0][0]["start"][0] == 12
    old.close()
    feeds.die("feed")
    other = feeds.trainer(5, 10)
    again = feeds.trainer(5)
    again.load(saved)
    ended = Event()

    def read_on() -> None:
        while not ended.is_set():
            other.read(1)

    with ThreadPoolExecutor(1) as beside:
        reading = beside.submit(read_on)
        again.read(91)
        ended.set()
        reading.result()
    assert again.epochs == 1 and "on a feed of its own" in capsys.readouterr().err
    again.read(10)
    assert again.loader.name == "feed" and again.loader.state_dict()["start"][0] < 12
    assert "sees random draws of those cycles again" in capsys.readouterr().err


def test_what_a_state_brings_of_joints_is_told_to_all_who_read(feeds):
    saved = saved_with_joints(feeds, 130)
    first = feeds.trainer(5, 10)
    second = feeds.trainer(5)
    second.load(saved)
    second.read(1)
    first.read(121 + 30)  # into the cycle where that joint is in force
    feeds.die("feed")
    first.read(100)
    assert first.epochs == 2
    second.read(121)
    assert second.epochs >= 1
