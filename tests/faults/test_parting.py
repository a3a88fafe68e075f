"""Whoever is killed or stopped while runs part: nobody's epoch suffers, and no feed stays without trainers."""

from __future__ import annotations

import functools
import os
import signal
import time
from typing import Any

import pytest
from tests.faults.conftest import each_has_all, each_waits_for, eventually
from tests.faults.sources import rows

import penstock
from penstock.feed.launch.feeds import move

pytestmark = pytest.mark.whole

SAMPLES = 2_000
SOURCE = {"kind": "rows of a quick pace", "samples": SAMPLES, "width": 500}
ORDER = {"source": SOURCE, "options": {"linger": 1.0, "window": 60_000}, "epochs": None, "forks_feeders": True}


def feeders() -> dict[str, int]:
    return {feed.name: feed.pid for feed in penstock.feeds()}


def parted() -> list[int]:
    """The feeders that were started for runs that part."""
    return [pid for name, pid in feeders().items() if "-pace-" in name]


def reads_apart(mover: Any) -> bool:
    """Whether a trainer has taken a batch from such a feed."""
    return any(mover.has_heard_of(pid) for pid in parted())


KILLED, STOPPED = ("root", "starter"), ("new", "slow")


@pytest.mark.parametrize(
    ("who", "how"),
    [
        *((who, signal.SIGKILL) for who in KILLED),
        *((who, signal.SIGSTOP) for who in STOPPED),
        *(pytest.param(who, signal.SIGSTOP, marks=pytest.mark.soak) for who in KILLED),
        *(pytest.param(who, signal.SIGKILL, marks=pytest.mark.soak) for who in STOPPED),
    ],
)
def test_one_that_is_killed_or_stopped_in_a_trial_costs_nobody_a_sample(train, tmp_path, who, how) -> None:
    until = tmp_path / "until"
    order = {**ORDER, "until": str(until)}
    slow = train("a", delay_s=0.05, **order)
    slow.wait_for("epoch")
    fast, also = train("a", delay_s=0.004, **order), train("a", delay_s=0.004, **order)
    each_waits_for((fast, also), "epoch")
    new = eventually(parted)[0]
    hurt = {"root": feeders()["a"], "new": new, "starter": fast.pid, "slow": slow.pid}[who]
    os.kill(hurt, how)
    left = [each for each in (slow, fast, also) if each.pid != hurt]
    if how == signal.SIGSTOP:
        time.sleep(1.0)
        os.kill(hurt, signal.SIGCONT)
        left = [slow, fast, also]
    if who != "slow" or how == signal.SIGSTOP:
        eventually(lambda: reads_apart(also))
    until.touch()
    each_has_all(left, SAMPLES)
    eventually(lambda: not feeders())


@pytest.mark.parametrize("ahead", [1, 2])
def test_who_is_sent_back_to_a_feed_that_somebody_has_joined_since_keeps_its_order(train, tmp_path, ahead) -> None:
    samples, until, gate = 700, tmp_path / "until", tmp_path / "gate"
    source = {"kind": "rows", "samples": samples, "width": 500, "segments": 1}  # nobody begins but at a joint
    order: dict[str, Any] = {**ORDER, "source": source, "until": str(until)}
    order["options"] = {"linger": 1.0, "window": 60_000, "expect": 2}  # both begin with the first sample
    slow = train("a", delay_s=0.1, **order)
    fast = train("a", delay_s=0.002, pause={"after": 100 * ahead + 30, "until": str(gate)}, **order)
    each_waits_for((slow, fast), "epoch")
    move("a", fast.pid, "b", now=True)
    fast.wait_for("paused")
    slow.wait_for("epoch", 40)  # of a hundred batches: what the fast one began with is no longer there
    late = train("a", delay_s=0.1, **order)
    late.wait_for("epoch")
    assert late.ids(0)[0] != fast.ids(0)[0], "it did not join late"
    assert fast.has_heard_of(feeders()["b"])
    move("b", fast.pid, "a", now=True)
    gate.touch()
    eventually(lambda: "stays: feed 'a' has the rest of its epoch in another order" in fast.output)
    until.touch()
    each_has_all((slow, fast, late), samples)
    assert "apart" not in fast.output
    eventually(lambda: not feeders())


def test_who_reads_apart_goes_on_there_when_that_feeder_is_killed(train, tmp_path) -> None:
    until = tmp_path / "until"
    order = {**ORDER, "until": str(until)}
    slow = train("a", delay_s=0.05, **order)
    slow.wait_for("epoch")
    fast = train("a", delay_s=0.004, **order)
    eventually(lambda: reads_apart(fast))
    (before,) = parted()
    os.kill(before, signal.SIGKILL)
    eventually(lambda: before not in parted() and reads_apart(fast))
    until.touch()
    each_has_all((slow, fast), SAMPLES)
    eventually(lambda: not feeders())


def test_who_waits_for_a_block_leaves_and_goes_on_where_that_feeder_is_killed(
    train, tmp_path, forks_feeders_with_torch
) -> None:
    """It began late, and the new feed has prepared its epoch's second cycle before the old one began that."""
    until, made = tmp_path / "until", functools.partial(rows, batch_size=5, width=500, segments=1)
    order: dict[str, Any] = {"epochs": None, "until": str(until), "batch_size": 5, "delay_s": 0.02}
    with penstock.share(made, "a", 5, window=60_000, linger=1) as loader:
        first = train("a", **order)
        first.wait_for("epoch", 40)
        second = train("a", **order)
        second.wait_for("epoch", 40)
        batches = iter(loader)
        seen = [next(batches)]

        def mine() -> Any:
            found = [each for feed in penstock.feeds() for each in feed.trainers if each.pid == os.getpid()]
            return found[0] if found else mine()

        began = mine().cycle, mine().joined_sample
        assert began[1], "it did not join late"
        while mine().sample < 945:
            seen.append(next(batches))
        first.stop()  # its feed comes no further
        assert {feed.cycle for feed in penstock.feeds()} == {began[0]}
        move("a", os.getpid(), "b", now=True)
        while loader.name != "b":
            seen.append(next(batches))
        first.signal("SIGCONT")
        while mine().cycle == began[0] or mine().sample < 50:
            seen.append(next(batches))
        os.kill(feeders()["b"], signal.SIGKILL)
        seen += batches
        assert sorted(id for batch in seen for id in batch["id"].tolist()) == list(range(1_000))
    until.touch()
    each_has_all((first, second), 1_000)
    eventually(lambda: not feeders())
