"""Kills and freezes of what a cluster consists of: blocks keep coming, and each sample comes once."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress

import psutil
import pytest
from tests.faults.conftest import Trainer
from tests.forked import eventually
from tests.ray.clusters import bridge_of, is_gone


@pytest.mark.parametrize("kills", [40, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_workers_nodes_and_the_bridge_killed_at_random_instants_cost_no_sample(cluster, training, kills):
    run = training()
    run.is_made_by(2, 2)
    chance = random.Random(kills)
    for _ in range(kills):
        time.sleep(chance.uniform(0, 0.5))
        for node in [each for each in cluster.nodes if is_gone(each.raylet)]:
            cluster.remove(node)
            cluster.add()
        node = chance.choice(cluster.nodes)
        victims = [pid for pid in (node.worker(), bridge_of(run.feeder)) if pid] or [node.raylet]
        with suppress(ProcessLookupError):
            os.kill(chance.choice([*victims, *victims, *victims, node.raylet]), signal.SIGKILL)
        run.goes_on()
    run.end()


@pytest.mark.parametrize("what", ["worker", "node", "bridge"])
def test_blocks_keep_coming_while_one_of_them_is_frozen(cluster, training, what):
    run = training()
    run.is_made_by(2, 2)
    node = cluster.nodes[0]
    frozen = {"worker": node.worker(), "node": node.raylet, "bridge": run.bridge}[what]
    stopped = [psutil.Process(frozen)]
    if what == "node":
        stopped += stopped[0].children(recursive=True)
    for process in stopped:
        process.suspend()
    try:
        run.goes_on(60)
        gap_s = max(map(longest_gap_s, run.trainers))
        if what == "bridge":
            eventually(lambda: is_gone(frozen), "a bridge that is frozen stays")
        else:
            run.is_made_by(1, 1)
            run.goes_on(60)
    finally:
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.resume()
    run.is_made_by(2, 2)
    run.end()


def longest_gap_s(trainer: Trainer) -> float:
    return 0.0
