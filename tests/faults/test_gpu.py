"""Deaths with device work outstanding, in processes of their own, each with a fake GPU that copies late."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import pytest
from tests.fakes.gpu import FakeGpu
from tests.faults.conftest import all_is_given_back, each_waits_for, eventually, unhurt
from tests.faults.sources import rows

pytestmark = pytest.mark.whole

SOAK = pytest.mark.soak
REACHES = {"seed": 1}
ELSEWHERE = {"seed": 2, "reaches": False}
FED_FROM_A_GPU = {"kind": "rows beside a fake GPU"}


def on_a_gpu(device: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"torch": True, "options": {"device": device, **options}}


@pytest.mark.parametrize("kills", [4, pytest.param(60, marks=[SOAK, pytest.mark.timeout(1200)])])
@pytest.mark.parametrize("memory", ["host", FakeGpu.name])
def test_a_trainer_killed_while_it_copies_to_a_gpu_costs_nobody_else(clean, serve, train, tmp_path, memory, kills):
    feeder = serve(rows(), window=100_000, memory="host" if memory == "host" else FakeGpu(5))
    until = tmp_path / "until"
    order = {"epochs": None, "until": str(until), "delay_s": 0.001}
    others = [
        train(**order, **on_a_gpu(REACHES)),
        train(**order, batch_size=64, **on_a_gpu(ELSEWHERE)),
        train(**order, batch_size=33),
    ]
    chance = random.Random(kills)
    with unhurt(feeder, others, until):
        for _ in range(kills // 2):
            victims = [
                train(epochs=None, batch_size=chance.choice([1, 10, 33, 250]), **on_a_gpu(device))
                for device in (REACHES, ELSEWHERE)
            ]
            for victim in victims:
                victim.wait_for("joined")
                time.sleep(chance.uniform(0, 0.1))
                victim.kill()


@pytest.mark.parametrize("place", ["copy", "batch"])
def test_a_trainer_killed_with_a_batch_half_copied_to_a_gpu_costs_nobody_else(clean, serve, train, place):
    feeder = serve(rows(samples=300), window=50_000, memory=FakeGpu(5))
    hurt = {"place": place, "nth": 3, "signal": "SIGKILL"}
    victims = [train(epochs=9, batch_size=33, hurt=hurt, **on_a_gpu(gpu)) for gpu in (REACHES, ELSEWHERE)]
    other = train(epochs=4, batch_size=20, **on_a_gpu(REACHES))
    for victim in victims:
        assert victim.wait() == -signal.SIGKILL
    other.has_all(300, 4)
    all_is_given_back(feeder)


def test_trainers_that_hold_views_on_a_gpu_are_told_that_their_feeder_was_killed_and_keep_them(feed, train):
    feeder = feed(window=100_000, memory={"seed": 5})
    trainers = [
        train(batch_size=10, epochs=10**6, keep=3, delay_s=0.002, **on_a_gpu({"seed": seed}, borrow=True))
        for seed in (1, 2)
    ]
    each_waits_for(trainers, "epoch", 5)
    feeder.kill()
    for trainer in trainers:
        trainer.fails("FeederLost", f"process {feeder.pid}")
        assert trainer.wait() == 0
        kept = trainer.wait_for("kept")
        assert kept["kept_right"]
        assert len(kept["kept"]) == 3


def test_a_failover_loses_no_sample_and_no_view_whichever_ring_a_trainer_reads(train, tmp_path):
    sharing = {"linger": 1.0, "window": 100_000, "memory": "fake:0"}
    order = {"source": FED_FROM_A_GPU, "keep": 3, "delay_s": 0.002, "batch_size": 10}
    order |= {"epochs": None, "until": str(tmp_path / "until"), "forks_feeders": True}
    trainers = [
        train(**order, **on_a_gpu(REACHES, borrow=True, **sharing)),
        train(**order, **on_a_gpu(ELSEWHERE, **sharing)),
        train(**order, options={"borrow": True, **sharing}),
    ]
    each_waits_for(trainers, "epoch", 5)
    pid = trainers[0].wait_for("joined")["joined"]
    os.kill(pid, signal.SIGKILL)
    for trainer in trainers:
        eventually(lambda t=trainer: t.events()[-1].get("feeder") not in (None, pid))
    (tmp_path / "until").touch()
    for trainer in trainers:
        trainer.has_all(1000)
        assert trainer.wait_for("done")["done"] == 1
        assert trainer.wait_for("kept")["kept_right"]


def test_a_trainer_that_runs_out_of_device_memory_is_told_so_and_the_others_go_on(clean, serve, train):
    feeder = serve(rows(), window=100_000, memory=FakeGpu(5))
    hoards = [
        train(batch_size=10, keep=10**6, **on_a_gpu({"seed": 3, "memory_bytes": 200_000, "reaches": reaches}))
        for reaches in (True, False)
    ]
    other = train(**on_a_gpu(REACHES))
    for hoard in hoards:
        hoard.fails("OutOfMemoryError", "fake:0 has 200,000 bytes")
        assert hoard.wait() == 0
        assert 5 < len(hoard.wait_for("kept")["kept"]) < 20, "in the middle of its epoch"
        assert hoard.wait_for("kept")["kept_right"]
    other.has_all(1000, 2)
    all_is_given_back(feeder)
