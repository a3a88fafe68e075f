"""Promise 6, the trainer's side: killed, stopped, idle, interrupted, forked; it costs nobody else."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from tests.faults.conftest import all_is_given_back, each_waits_for, eventually, unhurt
from tests.faults.sources import rows

import penstock

SOAK = pytest.mark.soak


@pytest.mark.parametrize("kills", [8, pytest.param(200, marks=[SOAK, pytest.mark.timeout(1200)])])
def test_a_trainer_killed_at_a_random_instant_costs_nobody_else(clean, serve, train, tmp_path, kills):
    feeder = serve(rows(), window=100_000)
    until = tmp_path / "until"
    others = [train(epochs=None, until=str(until), batch_size=size, delay_s=0.001) for size in (7, 64)]
    chance = random.Random(kills)
    with unhurt(feeder, others, until):
        for i in range(kills):
            victim = train(
                epochs=None, batch_size=chance.choice([1, 10, 33, 250]), delay_s=chance.choice([0, 0.005])
            )
            if i % 5:
                victim.wait_for("joined")
                time.sleep(chance.uniform(0, 0.1))
            else:
                time.sleep(chance.uniform(0, 0.3))
            victim.kill()


@pytest.mark.parametrize(("place", "nth"), [("copy", 1), ("copy", 3), ("batch", 3), ("epoch end", 1)])
def test_a_trainer_killed_in_the_middle_of_a_batch_or_at_its_end_costs_nobody_else(
    clean, serve, train, place, nth
):
    feeder = serve(rows(samples=300), window=50_000)
    victim = train(epochs=9, batch_size=33, hurt={"place": place, "nth": nth, "signal": "SIGKILL"})
    other = train(epochs=4, batch_size=20)
    assert victim.wait() == -signal.SIGKILL
    other.has_all(300, 4)
    if place == "epoch end":
        for epoch in range(nth):
            assert sorted(victim.ids(epoch)) == list(range(300))
    all_is_given_back(feeder)


@pytest.mark.parametrize("stall_s", [0, pytest.param(90, marks=[SOAK, pytest.mark.timeout(300)])])
def test_a_trainer_that_pauses_lets_the_others_go_on_within_the_window(clean, serve, train, tmp_path, stall_s):
    feeder = serve(rows(width=1000), window=300_000)
    idle = train(pause={"after": 10, "until": str(tmp_path / "go on")})
    idle.wait_for("paused")
    other = train()
    eventually(lambda: feeder.statistics().held_back_by == idle.pid)
    ahead = feeder.statistics()
    assert ahead.waits_for == "trainers"
    held = {trainer.pid: trainer.held_bytes for trainer in ahead.trainers}
    assert held[idle.pid] > 250_000
    assert ahead.used_bytes > 250_000
    time.sleep(stall_s)
    (tmp_path / "go on").touch()
    idle.has_all(1000, 2)
    other.has_all(1000, 2)


def test_a_trainer_that_pauses_for_too_long_is_evicted_and_goes_on_from_its_last_state(
    clean, serve, train, tmp_path
):
    feeder = serve(rows(), window=100_000, stall_timeout=0.5)
    idle = train(pause={"after": 10, "until": str(tmp_path / "go on")}, save=True)
    idle.wait_for("paused")
    train(epochs=3).has_all(1000, 3)
    assert idle.pid not in [trainer.pid for trainer in feeder.statistics().trainers]
    (tmp_path / "go on").touch()
    idle.fails("TrainerEvicted", f"pid {idle.pid}", "stall_timeout of 0.5 s", "state_dict")
    state = [event["state"] for event in idle.events() if "state" in event][-1]
    again = train(resume=state, epochs=2)
    assert again.wait() == 0, again.output
    assert sorted(idle.ids(0) + again.ids(0)) == list(range(1000))
    assert sorted(again.ids(1)) == list(range(1000))


@pytest.mark.parametrize(("nth", "batch_size"), [(1, 33), (2, 10), (30, 33)])
def test_a_trainer_stopped_in_the_middle_of_a_copy_hands_out_no_overwritten_bytes(
    clean, serve, train, nth, batch_size
):
    feeder = serve(rows(), window=100_000, stall_timeout=0.3)
    sleeper = train(epochs=99, batch_size=batch_size, hurt={"place": "copy", "nth": nth, "signal": "SIGSTOP"})
    eventually(sleeper.stopped)
    before = len(sleeper.events())
    train(epochs=4).has_all(1000, 4)
    assert sleeper.pid not in [trainer.pid for trainer in feeder.statistics().trainers]
    sleeper.signal("SIGCONT")
    sleeper.fails("TrainerEvicted")
    assert len(sleeper.events()) == before + 1
    sleeper.ids(0)


@pytest.mark.parametrize("workers", [None, 2])
def test_ctrl_c_ends_feeder_and_trainers_and_leaves_nothing(feed, train, workers):
    options = {"kind": "rows"} if workers is None else {"kind": "loader", "workers": workers}
    feeder = feed(options.pop("kind"), source=options, process_group=0)
    order = {"epochs": 10**6, "torch": workers is not None, "process_group": feeder.pid}
    trainers = [train(**order, delay_s=delay_s) for delay_s in (0.0, 0.1)]
    each_waits_for(trainers, "epoch", 3)
    os.killpg(feeder.pid, signal.SIGINT)
    for trainer in trainers:
        assert trainer.wait_for("error")["error"] in ("KeyboardInterrupt", "FeederLost")
        trainer.wait()

    def ended() -> bool:
        if "Exception ignored in" in feeder.output:  # CPython drops a Ctrl-C that comes while it forks a worker
            feeder.signal("SIGINT")
        return feeder.ended

    eventually(ended, feeder.output)
    assert feeder.wait() != 0
    assert "KeyboardInterrupt" in feeder.output


def test_ctrl_c_of_all_sharers_ends_the_feeder_too(train):
    options = {"source": {"kind": "rows"}, "options": {"linger": 0.5}, "epochs": 10**6, "delay_s": 0.01}
    first = train(**options, process_group=0)
    second = train(**options, process_group=first.pid)
    feeders = {trainer.wait_for("joined")["joined"] for trainer in (first, second)}
    assert len(feeders) == 1
    each_waits_for((first, second), "epoch", 3)
    os.killpg(first.pid, signal.SIGINT)
    for trainer in (first, second):
        trainer.fails("KeyboardInterrupt")
        assert trainer.wait() == 0
    (feeder,) = feeders
    eventually(lambda: not os.path.exists(f"/proc/{feeder}"), "the feeder outlived its trainers")


@pytest.mark.parametrize("made", [False, True])
def test_ctrl_c_while_a_loader_is_made_or_its_slow_source_is_waited_for_leaves_nothing(train, tmp_path, made):
    slow = {"kind": "paced", "samples": 100, "batch_size": 10, "pause_s": 60}
    makes = {"kind": "announcing", "started": str(tmp_path / "started"), "pause_s": 3}
    first = train(source=slow if made else makes, options={"linger": 0.0})
    first.wait_for("joined") if made else eventually((tmp_path / "started").exists)
    first.signal("SIGINT")
    first.fails("KeyboardInterrupt")


FORKS = """
import os, signal, sys, time
import penstock
loader = penstock.attach("feed", 10, wait_s=30)
batches = iter(loader)
ids = [int(i) for i in next(batches)["id"]]
child = os.fork()
if child == 0:
    try:
        next(batches)
    except penstock.errors.ForkedLoader as error:
        print("child:", error, flush=True)
    try:
        iter(loader)
    except penstock.errors.ForkedLoader as error:
        print("child:", error, flush=True)
    loader.close()
    os._exit(0)
os.waitpid(child, 0)
for batch in batches:
    ids.extend(int(i) for i in batch["id"])
print("parent:", sorted(ids) == list(range(300)), flush=True)
del batch, batches
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, flush=True)
iter(loader)
time.sleep(600)
"""


def test_a_forked_child_cannot_use_the_loader_and_its_parent_goes_on(clean, serve):
    feeder = serve(rows(samples=300))
    parent = subprocess.Popen([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    said = [parent.stdout.readline() for _ in range(4)]
    assert [line.split(":")[0] for line in said[:3]] == ["child", "child", "parent"]
    assert all(f"belongs to process {parent.pid}" in line and "attach()" in line for line in said[:2])
    assert said[2] == "parent: True\n"
    child = int(said[3])
    try:
        assert [trainer.pid for trainer in feeder.statistics().trainers] == [parent.pid]
        parent.kill()
        parent.wait()
        eventually(lambda: not feeder.statistics().trainers, "the child keeps its dead parent's place")
        os.kill(child, 0)  # it lives still
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


def test_a_trainer_killed_while_it_waits_for_its_first_block_is_forgotten(clean, feed, train):
    feed("blocking", source={"after": 0})
    waiting = train()
    waiting.wait_for("joined")
    (statistics,) = eventually(
        lambda: [s for s in penstock.feeds() if s.trainers and s.trainers[0].state == "reading"]
    )
    assert statistics.trainers[0].pid == waiting.pid
    waiting.kill()
    eventually(lambda: not penstock.feeds()[0].trainers)


def test_a_rank_that_dies_lets_the_other_ranks_go_on(clean, serve, train):
    serve(rows(samples=100))
    first = train(options={"shard": (0, 2)}, epochs=1)
    victim = train(options={"shard": (1, 2)}, epochs=1, hurt={"place": "batch", "nth": 1, "signal": "SIGKILL"})
    assert victim.wait() == -signal.SIGKILL
    assert first.wait() == 0, first.output
    assert len(first.ids(0)) == 50


def test_a_rank_killed_while_it_waits_for_the_others_makes_room_for_its_successor(clean, serve, train):
    feeder = serve(rows(samples=100))
    victim = train(options={"shard": (1, 2)}, epochs=1)
    eventually(lambda: [t.state for t in feeder.statistics().trainers] == ["waiting"])
    victim.kill()
    ranks = [train(options={"shard": (rank, 2)}, epochs=1) for rank in (1, 0)]
    for rank in ranks:
        assert rank.wait() == 0, rank.output
    assert sorted(ranks[0].ids(0) + ranks[1].ids(0)) == list(range(100))
