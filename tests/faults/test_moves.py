"""A trainer that moves from one feed to another loses and repeats no sample, whoever is killed meanwhile."""

from __future__ import annotations

import gc
import os
import random
import signal
import time
from contextlib import nullcontext, suppress
from itertools import permutations
from typing import Any

import pytest
from tests.faults.conftest import descriptors, each_has_all, each_waits_for, eventually, ring_maps
from tests.faults.test_interrupts import ROWS, alarms, arrays, read_on

import penstock
from penstock.feed.endpoint import Endpoint
from penstock.feed.launch.feeds import move

pytestmark = pytest.mark.whole

SOURCE = {"kind": "rows", "samples": 300, "width": 500}
ORDER = {"source": SOURCE, "options": {"linger": 1.0, "window": 60_000}, "epochs": None, "forks_feeders": True}


def feeders() -> dict[str, int]:
    """The feeder that serves each feed now."""
    return {feed.name: feed.pid for feed in penstock.feeds()}


def told_to_move(output: str) -> int:
    return output.count("moves from feed")


@pytest.fixture
def until(tmp_path):
    return tmp_path / "until"


def test_a_trainer_whose_feeder_is_killed_before_it_could_move_still_moves(train, until, tmp_path):
    gate = tmp_path / "gate"
    order = {**ORDER, "until": str(until)}
    mover = train("a", pause={"after": 3, "until": str(gate)}, **order)
    there = train("b", delay_s=0.001, **order)
    mover.wait_for("paused")
    there.wait_for("epoch")
    move("a", mover.pid, "b")
    os.kill(feeders()["a"], signal.SIGKILL)
    gate.touch()
    served = feeders()["b"]
    eventually(lambda: mover.has_heard_of(served))
    until.touch()
    each_has_all((mover, there), 300)
    assert told_to_move(mover.output) == 1


def test_the_feeder_that_a_trainer_moved_to_is_replaced_by_it_under_the_same_name(train, until):
    order = {**ORDER, "until": str(until), "delay_s": 0.001}
    mover, there = train("a", **order), train("b", **order)
    each_waits_for((mover, there), "epoch")
    before = feeders()["b"]
    move("a", mover.pid, "b")
    eventually(lambda: mover.has_heard_of(before))
    there.kill()
    os.kill(before, signal.SIGKILL)
    after = eventually(lambda: feeders().get("b") not in (None, before) and feeders().get("b"))
    eventually(lambda: mover.has_heard_of(after))
    until.touch()
    mover.has_all(300)


def test_a_trainer_that_attached_moves_from_a_feeder_that_died_after_it_was_told(train, until, tmp_path):
    gate = tmp_path / "gate"
    order = {**ORDER, "until": str(until)}
    owners = [train(name, delay_s=0.001, **order) for name in ("a", "b")]
    each_waits_for(owners, "epoch")
    at_the_last_batch = {"after": 300 // 50 - 1, "until": str(gate)}
    mover = train("a", epochs=3, batch_size=50, pause=at_the_last_batch)
    mover.wait_for("paused")
    move("a", mover.pid, "b")
    killed = feeders()["a"]
    owners[0].signal("SIGSTOP")  # or it would replace the feeder
    os.kill(killed, signal.SIGKILL)
    gate.touch()
    mover.has_all(300, 3)
    assert told_to_move(mover.output) == 1
    owners[0].signal("SIGCONT")
    until.touch()
    each_has_all(owners, 300)


@pytest.mark.parametrize(
    ("now", "seed"),
    [(False, 0), (True, 0), *(pytest.param(seed > 2, seed, marks=pytest.mark.soak) for seed in range(1, 13))],
)
def test_moves_and_deaths_of_feeders_at_random_instants_cost_no_sample(train, until, now, seed):
    """Those that leave now go also to a feed that does not run, which one of them starts."""
    chance = random.Random(seed)
    order = {**ORDER, "until": str(until)}
    trainers = [
        train(name, batch_size=chance.choice([7, 33, 64, 150]), delay_s=delay_s, **order)
        for name, delay_s in (("a", 0.001), ("b", 0.001), ("a", 0.0), ("b", 0.002))
    ]
    each_waits_for(trainers, "epoch")
    for _ in range(24 if now else 12):
        time.sleep(chance.uniform(0, 0.2))
        if chance.random() < 0.3:
            owner = Endpoint(chance.choice("abc" if now else "ab")).owner()
            if owner is not None and owner.pid not in [trainer.pid for trainer in trainers]:
                with suppress(ProcessLookupError):
                    os.kill(owner.pid, signal.SIGKILL)
            continue
        at, to = chance.choice([*permutations("abc" if now else "ab", 2)])
        # Where its feeder was killed just now, or it reads another feed, it is not told.
        with suppress(penstock.errors.FeedNotFound, penstock.errors.Refused):
            move(at, chance.choice(trainers).pid, to, now=now)
    until.touch()
    each_has_all(trainers, 300)
    said = "reads on from its place" if now else "moves from feed"
    assert any(said in trainer.output for trainer in trainers)


def test_moves_back_and_forth_leave_no_descriptor_or_ring_behind(forks_feeders_with_torch, clean):
    with (
        penstock.share(arrays, "a", 50, linger=0.5) as loader,
        penstock.share(arrays, "a"),
        penstock.share(arrays, "b", linger=0.5),
    ):
        opened: list[Any] = []
        for to in "baba":
            move(loader.name, os.getpid(), to)
            assert sorted(int(i) for batch in loader for i in batch["id"]) == list(range(ROWS))
            assert loader.name == to
            opened.append((descriptors(), ring_maps()))
        assert opened[1:] == opened[:1] * 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # what an alarm cut off is left to the collector
@pytest.mark.timeout(method="thread")  # the alarm is the test's own
@pytest.mark.parametrize("asks", ["the feeder", "to go now", "a file"])
def test_interrupts_in_the_middle_of_a_move_lose_and_repeat_nothing(
    asks, forks_feeders_with_torch, tmp_path, monkeypatch
):
    file = tmp_path / "suffix"

    def ask(here: str, to: str) -> None:
        if asks != "a file":
            move(here, os.getpid(), to, now=asks == "to go now")
        else:
            file.write_text(to.removeprefix("a").removeprefix("-"))

    if asks == "a file":
        monkeypatch.setenv("PENSTOCK_FEED_FILE", str(file))
    b = "a-b" if asks == "a file" else "b"
    with (
        penstock.share(arrays, "a", linger=30) as loader,
        nullcontext() if asks == "a file" else penstock.share(arrays, "b") as there,
        alarms(8) as arm,
    ):
        hit, names = 0, set()
        for epoch in range(8):
            ask(loader.name, b if loader.name == "a" else "a")
            here, attempts = loader.name, iter(range(200 if asks == "to go now" else 4))

            def interrupt(here: str = here, left: Any = attempts) -> None:
                """Interrupt the next call, until it has moved."""
                if loader.name == here and next(left, None) is not None:
                    arm()

            hits, ids = read_on(loader, interrupt)
            assert sorted(ids) == list(range(ROWS))
            assert loader.epoch == epoch + 1
            hit += hits
            names.add(loader.name)
        assert hit
        assert names == {"a", b}
        assert there is None or there.name == b
    gc.collect()
    for feed in penstock.feeds():
        penstock.stop(feed.name)
