"""Kills and freezes of what a cluster consists of: blocks keep coming, and each sample comes once."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress

import psutil
import pytest
from tests.forked import eventually
from tests.ray.clusters import is_gone, stopped, wait_until_gone


@pytest.mark.parametrize("kills", [40, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_workers_nodes_and_the_bridge_killed_at_random_instants_cost_no_sample(cluster, training, kills):
    run = training()
    run.is_made_by(2, 2)
    chance = random.Random(kills)
    for number in range(kills):
        time.sleep(chance.uniform(0, 0.25))
        if number % 13 == 12:
            victim = run.bridge
        elif number % 10 == 5:
            victim = chance.choice(cluster.nodes).raylet
        else:
            victim = chance.choice(eventually(cluster.makers, "no worker comes back"))
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        run.goes_on(3)
        for node in [each for each in cluster.nodes if is_gone(each.raylet)]:
            cluster.remove(node)
            cluster.add()
    run.is_made_by(2, 2)
    run.end()


def test_blocks_keep_coming_while_a_worker_a_node_the_head_or_the_bridge_is_frozen(cluster, training):
    run = training()
    run.is_made_by(2, 2)
    run.goes_on(20)
    node = cluster.nodes[0]
    victims = {"worker": node.worker(), "node": node.raylet, "head": cluster.gcs, "bridge": run.bridge}
    for what, pid in victims.items():
        frozen = psutil.Process(pid)
        with stopped([frozen, *(frozen.children(recursive=True) if what == "node" else [])]):
            print(f"{what} frozen: the longest gap at a trainer was {run.goes_on(20):.2f} s")
            if what == "bridge":
                wait_until_gone(pid)
            elif what != "head":  # without which nodes make blocks as before
                run.is_made_by(1, 1)
        run.is_made_by(2, 2)
    run.end()
