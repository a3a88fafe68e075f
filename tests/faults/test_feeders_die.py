"""Promise 6, the feeder's side: replaced under ``share``, reported under ``attach``, and nobody waits for ever."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.faults.conftest import Trainer, each_has_all, each_waits_for, eventually, ring_maps

import penstock
from penstock.feed.endpoint import Endpoint

SOAK = pytest.mark.soak


def feeder_pid() -> int:
    """The feeder that serves now."""
    return eventually(lambda: [feed.pid for feed in penstock.feeds()])[0]


def test_a_shared_feeder_killed_at_a_random_instant_is_replaced_and_nobody_loses_a_sample(train, tmp_path):
    kills = 3
    until = str(tmp_path / "until")
    source, sharing = {"kind": "rows", "samples": 1000, "width": 500}, {"linger": 1.0, "window": 60_000}
    order = {"source": source, "epochs": None, "until": until}
    trainers = [
        train(**order, options=sharing, batch_size=7, delay_s=0.001),
        train(**order, options={**sharing, "borrow": True}, batch_size=10, keep=3),
        train(**order, options=sharing, batch_size=150, delay_s=0.02),
    ]
    each_waits_for(trainers, "epoch")
    chance = random.Random(kills)
    killed: set[int] = set()
    for _ in range(kills):
        time.sleep(chance.uniform(0, 0.5))
        pid = feeder_pid()
        os.kill(pid, signal.SIGKILL)
        killed.add(pid)
        for trainer in trainers:
            eventually(lambda t=trainer: t.events()[-1].get("feeder") not in (None, *killed))
    (tmp_path / "until").touch()
    for trainer in trainers:
        trainer.has_all(1000)
        assert 1 <= trainer.wait_for("done")["done"] <= kills
    assert trainers[1].wait_for("kept")["kept_right"]
    assert len(killed) == kills


def test_padded_ranks_go_on_in_equal_steps_when_their_feeder_is_killed(train, tmp_path):
    go_on = tmp_path / "go on"
    ranks = [
        train(
            source={"kind": "rows", "samples": 203, "width": 500},
            options={"linger": 1.0, "window": 60_000, "batch_size": 16, "shard": (rank, 4), "pad": True},
            epochs=3,
            pause={"after": 5, "until": str(go_on)},
        )
        for rank in range(4)
    ]
    each_waits_for(ranks, "paused")
    os.kill(feeder_pid(), signal.SIGKILL)
    go_on.touch()
    for rank in ranks:
        assert rank.wait_for("done")["done"] == 1
    for epoch in range(3):
        steps = [[len(e["ids"]) for e in rank.events() if e.get("epoch") == epoch] for rank in ranks]
        assert steps == [[16, 16, 16, 3]] * 4
        assert {i for rank in ranks for i in rank.ids(epoch)} == set(range(203))


@pytest.mark.parametrize("selecting", [False, True])
@pytest.mark.parametrize(
    "feeds",
    [1, pytest.param(2, marks=pytest.mark.whole), pytest.param(100, marks=[SOAK, pytest.mark.timeout(1800)])],
)
def test_feeders_and_trainers_killed_and_stopped_at_random_instants_cost_nobody_else(
    train, tmp_path, feeds, selecting
):
    """Ten wounds to each feed: also to feeders that only start, two deaths of which in a row a trainer stands.

    With ``selecting``, each trainer takes a part of the samples, another one in each epoch, or all of them.
    """
    with ThreadPoolExecutor(2) as two:
        list(two.map(lambda seed: _wound(train, tmp_path / str(seed), seed, selecting), range(feeds)))


def _wound(train: Callable[..., Trainer], until: Path, seed: int, selecting: bool) -> None:
    chance = random.Random(seed)
    name, early, wounds = f"feed {seed}", 0, 0

    def another() -> Trainer:
        return train(
            name,
            source={"kind": "rows", "samples": 300, "width": 500},
            options={"linger": 0.3, "window": 60_000},
            epochs=None,
            until=str(until),
            batch_size=chance.choice([7, 33, 64, 150]),
            delay_s=chance.choice([0, 0.002, 0.02]),
            parts=parts() if selecting else [],
        )

    def parts() -> list[list[int]]:
        sizes = [chance.choice([1, 10, 150, 150, 290]) for _ in range(chance.choice([0, 1, 1, 3]))]
        return [chance.sample(range(300), size) for size in sizes]

    trainers = [another() for _ in range(3)]
    killed: list[Trainer] = []
    while wounds < 10:
        time.sleep(chance.uniform(0, 0.3))
        kind = chance.choice(["feeder", "feeder", "trainer", "pause"])
        feeder = _feeder(name, trainers)
        if kind == "trainer":
            victim = trainers.pop(chance.randrange(1, 3))
            victim.kill()
            killed.append(victim)
            trainers.append(another())
        elif feeder is None:
            continue
        else:
            with suppress(psutil.NoSuchProcess):
                if kind == "pause":
                    paused = chance.choice([feeder, psutil.Process(trainers[0].pid)])
                    paused.suspend()
                    time.sleep(chance.uniform(0, 0.3))
                    paused.resume()
                else:
                    if all(trainer.has_heard_of(feeder.pid) for trainer in trainers):
                        early = 0
                    elif early == 2:
                        continue
                    else:
                        early += 1
                    feeder.kill()
        wounds += 1
    until.touch()
    each_has_all(trainers, 300)
    for trainer in killed:
        for epoch in {event["epoch"] for event in trainer.events() if "epoch" in event}:
            ids = trainer.ids(epoch)
            assert epoch not in trainer.ended_epochs() or sorted(ids) == trainer.part(epoch, 300)


def _feeder(name: str, trainers: list[Trainer]) -> psutil.Process | None:
    """A process of the feed, if there is one: one that starts descends from a trainer."""
    with suppress(psutil.NoSuchProcess):
        for trainer in trainers:
            if starting := psutil.Process(trainer.pid).children(recursive=True):
                return starting[-1]
        owner = Endpoint(name).owner()
        if owner is not None:
            process = psutil.Process(owner.pid)
            if "penstock.feed.launch.detached" in " ".join(process.cmdline()):
                return process
    return None


def test_a_shared_feeder_with_a_torch_loader_is_replaced_and_its_workers_go_with_it(train):
    source = {"kind": "loader", "samples": 300, "workers": 2}
    trainers = [
        train(
            source=source,
            options={"linger": 1.0, "window": 100_000},
            batch_size=size,
            delay_s=0.01,
            torch=True,
            forks_feeders=True,
        )
        for size in (7, 10)
    ]
    each_waits_for(trainers, "epoch", 5)
    pid = trainers[0].wait_for("joined")["joined"]
    workers = psutil.Process(pid).children()
    assert workers
    os.kill(pid, signal.SIGKILL)
    for trainer in trainers:
        trainer.has_all(300, 2)
        assert trainer.wait_for("done")["done"] == 1
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive


def test_a_shared_feeder_killed_before_its_first_batch_is_replaced(train, tmp_path):
    started = tmp_path / "started"
    source = {"kind": "announcing", "started": str(started), "pause_s": 0.5}
    trainers = [train(source=source, options={"linger": 1.0}) for _ in range(2)]
    pid = int(eventually(lambda: started.exists() and started.read_text()).split()[0])
    os.kill(pid, signal.SIGKILL)
    each_has_all(trainers, 1000, 2)
    assert len(started.read_text().split()) == 2


def test_trainers_blocked_in_next_are_told_that_their_feeder_was_killed(feed, train, tmp_path):
    feeder = feed("blocking", source={"after": 3, "gate": str(tmp_path / "gate")})
    trainers = [train(batch_size=10), train(batch_size=10)]
    each_waits_for(trainers, "joined")
    eventually(lambda: [t.state for t in penstock.feeds()[0].trainers] == ["reading"] * 2)
    (tmp_path / "gate").touch()
    for trainer in trainers:
        trainer.wait_for("epoch", 3)
        eventually(lambda pid=trainer.pid: psutil.Process(pid).status() == psutil.STATUS_SLEEPING)
    feeder.kill()
    for trainer in trainers:
        trainer.fails("FeederLost", f"process {feeder.pid}", "died")
        assert trainer.wait() == 0
        assert trainer.ids(0) == list(range(30))


@pytest.mark.parametrize("kind", ["rows", "loader"])
def test_trainers_in_the_middle_of_an_epoch_are_told_that_their_feeder_was_killed_and_no_worker_is_left(
    feed, train, kind
):
    torch = kind == "loader"
    feeder = feed(kind, window=100_000, source={"workers": 2, "samples": 1000} if torch else None)
    trainers = [train(torch=torch, **more) for more in ({"delay_s": 0.01}, {"batch_size": 33, "delay_s": 0.01})]
    trainers.append(train(epochs=10**6, torch=torch))
    each_waits_for(trainers, "epoch", 5)
    # Between two cycles there are none for a moment.
    workers = eventually(psutil.Process(feeder.pid).children) if torch else []
    feeder.kill()
    for trainer in trainers:
        trainer.fails("FeederLost")
        assert trainer.wait() == 0
        for epoch in range(len(trainer.ended_epochs()) + 1):
            trainer.ids(epoch)
    _, alive = psutil.wait_procs(workers, timeout=30)
    for worker in alive:
        with suppress(psutil.Error):
            worker.kill()
    assert not alive


@pytest.mark.parametrize("who", ["feeder", "trainer"])
@pytest.mark.parametrize("stop_s", [2, pytest.param(30, marks=SOAK)])
def test_who_is_stopped_and_goes_on_loses_nothing(feed, train, who, stop_s):
    feeder = feed(window=100_000)
    trainers = [train(delay_s=0.002), train(delay_s=0.002, batch_size=33)]
    each_waits_for(trainers, "epoch", 3)
    stopped = feeder if who == "feeder" else trainers[0]
    stopped.stop()
    time.sleep(stop_s)
    stopped.signal("SIGCONT")
    each_has_all(trainers, 1000, 2)
    feeder.interrupt()


def test_what_a_feeder_says_last_is_heard_by_a_trainer_whose_packets_it_has_not_read(clean, feed):
    """A socket that is closed with packets unread must not take what was sent on it along."""
    feeder = feed(source={"samples": 600, "batch_size": 1, "width": 10}, window=1 << 20)
    with penstock.attach("feed", 1, borrow=True, wait_s=30) as loader:
        batches = iter(loader)
        next(batches)
        eventually(lambda: penstock.feeds()[0].samples > 300)
        feeder.stop()
        for _ in range(150):
            next(batches)
        stopping = threading.Thread(target=penstock.stop, args=("feed",))
        stopping.start()
        time.sleep(0.2)
        feeder.signal("SIGCONT")
        stopping.join()
        feeder.wait()
        with pytest.raises(penstock.errors.FeedStopped, match="was stopped by process"):
            for batch in batches:
                del batch
        del batches


def test_an_error_at_a_trainers_end_keeps_no_view_alive(clean, feed):
    feeder = feed()
    before = ring_maps()

    def lose() -> None:
        with penstock.attach("feed", 10, borrow=True, wait_s=30) as loader:
            for batch in loader:  # noqa: B007
                feeder.kill()

    with suppress(penstock.errors.FeederLost):
        lose()
    assert ring_maps() == before


@pytest.mark.parametrize("turn", [0, *(pytest.param(turn, marks=pytest.mark.whole) for turn in (1, 2))])
def test_a_feed_of_some_epochs_ends_when_everybody_has_read_the_last_batch(clean, feed, train, tmp_path, turn):
    feeder = feed(source={"samples": 500, "batch_size": 2, "width": 10}, window=1 << 14, epochs=2)
    pause = {"after": 0, "until": str(tmp_path / "all are there")}
    trainers = [
        train(batch_size=size, delay_s=delay_s, pause=pause) for size, delay_s in ((1, 0.0), (2, 0.0), (50, 0.05))
    ]
    each_waits_for(trainers, "joined")
    (tmp_path / "all are there").touch()
    each_has_all(trainers, 500, 2)
    assert feeder.wait() == 0, feeder.output
