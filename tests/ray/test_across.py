"""Feeds of one name on several machines, here directories of feeds: each block is made once for all of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.faults.conftest import Trainer, each_has_all, each_waits_for
from tests.forked import eventually
from tests.ray.clusters import RayCluster, bridge_of, started_by, stopped, wait_until_gone
from tests.ray.conftest import SAMPLES

import penstock
from penstock.feed.statistics import FeederStatistics
from penstock.sources.remote.status import Passed


class Across:
    """A trainer on each of several machines, until ``end`` is called."""

    def __init__(self, train: Callable[..., Trainer], folder: Path, shard: str, patch: Any) -> None:
        self._train, self._folder, self._patch = train, folder, patch
        self.source = {"kind": "records", "folder": shard, "pause_s": 0.001, "segments": 4}
        self.trainers: list[Trainer] = []

    def start(self, machines: int, window: str = "4MiB", **trains: Any) -> None:
        """Have more machines train."""
        for _ in range(machines):
            directory = self._folder / f"machine {len(self.trainers)}"
            directory.mkdir(mode=0o700)
            options = {"linger": 0.5, "window": window, "workers": "ray", "across": True}
            until = str(self._folder / "until")
            started = self._train(
                source=self.source, options=options, epochs=None, until=until, directory=directory, **trains
            )
            self.trainers.append(started)

    def feed(self, machine: int) -> FeederStatistics:
        """The feed of a machine."""
        with self._patch.context() as patch:
            patch.setenv("PENSTOCK_DIR", str(self._folder / f"machine {machine}"))
            return eventually(penstock.feeds)[0]

    def cluster_makes_all(self) -> None:
        """Wait until no feeder loads by itself."""
        for machine in range(len(self.trainers)):
            eventually(lambda m=machine: "made by" in self.feed(m).source, lambda m=machine: self.feed(m).source)

    def passed(self) -> Passed:
        """What became of the blocks, as the machine says that heard of it last."""

        def heard() -> list[Passed]:  # nothing while the conductor does not answer in time
            standings = [self.feed(machine).cluster.standing for machine in range(len(self.trainers))]
            return [each.passed for each in standings if each.passed]

        return max(eventually(heard, "no conductor answers"), key=lambda passed: passed.handed)

    def all_have_begun(self) -> Passed:
        """Wait until no feed wants blocks that others had before it was there, and which are made again for it."""
        self.goes_on()
        return self.handed(100)

    def handed(self, more: int) -> Passed:
        """Wait until the feeds were handed this many blocks more; return what became of all then.

        Feeds hear of it once a second.
        """
        before = self.passed().handed
        return eventually(lambda: now if (now := self.passed()).handed > before + more else None, "too few blocks")

    def goes_on(self, epochs: int = 1) -> None:
        each_waits_for(self.trainers, "end", max(len(each.ended_epochs()) for each in self.trainers) + epochs)

    def end(self) -> None:
        """End it after the epochs that have begun: each sample came once in each."""
        feeders = [self.feed(machine).pid for machine in range(len(self.trainers))]
        bridges = list(filter(None, map(bridge_of, feeders)))
        (self._folder / "until").touch()
        each_has_all(self.trainers, SAMPLES)
        wait_until_gone(*feeders, *bridges)


@pytest.fixture
def across(train: Any, tmp_path: Path, shard: str, monkeypatch: pytest.MonkeyPatch) -> Across:
    return Across(train, tmp_path, shard, monkeypatch)


def conductor(cluster: RayCluster) -> psutil.Process:
    """The process of a cluster's conductor, which is waited for; it is on the feeders' machine, the head's."""
    pid = eventually(lambda: started_by(cluster.raylet, "ray::Conductor"), "there is none where the feeders are")
    return psutil.Process(pid)


def test_three_machines_get_the_same_blocks_and_each_is_made_once(cluster, across):
    across.start(3)
    across.cluster_makes_all()
    assert conductor(cluster).ppid() == cluster.raylet, "it is not on the machine of a feeder"
    before = across.all_have_begun()
    across.goes_on(2)
    after = across.handed(200)
    assert after.again == before.again
    assert after.handed - before.handed > 1.5 * (after.made - before.made)
    across.end()
    one, *others = [trainer.ids(0) for trainer in across.trainers]
    assert all(sorted(each) == sorted(one) for each in others)


@pytest.mark.usefixtures("cluster")
def test_a_machine_that_comes_later_begins_where_the_others_are(across):
    across.start(1)
    across.cluster_makes_all()
    across.goes_on(2)
    across.start(1)
    across.cluster_makes_all()
    across.goes_on()
    assert across.feed(1).cycle >= 2
    across.end()


@pytest.mark.parametrize("what", ["conductor", "feeder"])
def test_a_conductor_and_a_feeder_that_are_killed_cost_no_sample(cluster, across, what):
    across.start(2)
    across.cluster_makes_all()
    across.goes_on()
    os.kill(conductor(cluster).pid if what == "conductor" else across.feed(0).pid, signal.SIGKILL)
    across.goes_on(2)
    across.cluster_makes_all()
    across.end()


@pytest.mark.parametrize("what", ["killed", "frozen"])
def test_a_node_with_blocks_on_it_that_is_killed_or_frozen_costs_no_sample(cluster, across, what):
    across.start(2)
    across.cluster_makes_all()
    across.goes_on()
    node = psutil.Process(cluster.nodes[0].raylet)
    with stopped([node, *node.children(recursive=True)] if what == "frozen" else []):
        if what == "killed":
            node.kill()
        across.goes_on(2)
        across.cluster_makes_all()
    across.end()


def test_while_the_conductor_is_frozen_the_feeds_load_by_themselves(cluster, across):
    across.start(2)
    across.cluster_makes_all()
    across.goes_on()
    frozen = conductor(cluster)
    frozen.suspend()
    across.goes_on(2)
    assert all("loaded by the feeder itself" in across.feed(machine).source for machine in range(2))
    frozen.resume()
    across.cluster_makes_all()
    across.end()


@pytest.mark.usefixtures("cluster")
def test_a_machine_that_stands_still_holds_nobody_back(across):
    across.start(2)
    across.cluster_makes_all()
    across.goes_on()
    slow, fast = across.trainers
    slow.stop()
    fast.wait_for("end", len(fast.ended_epochs()) + 3)
    slow.signal("SIGCONT")
    across.goes_on()
    across.end()


@pytest.mark.usefixtures("cluster")
def test_a_feed_of_the_same_name_and_another_order_gets_nothing_of_it(across):
    across.start(1)
    across.cluster_makes_all()
    across.source["segments"] = 2
    across.start(1)
    eventually(lambda: "other data, another order" in across.feed(1).source, lambda: across.feed(1).source)
    across.end()
