"""One cluster for all tests here, which leave it as they found it; and a feed that three trainers read."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.conftest import Trainer, each_has_all, each_waits_for, processes, train
from tests.faults.sources import write_shard
from tests.forked import eventually
from tests.ray.clusters import LOOPBACK, RayCluster, bridge_of, is_gone, wait_until_gone

import penstock

SAMPLES = 400

__all__ = ["processes", "train"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.ray)


@pytest.fixture(autouse=True)
def on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LOOPBACK.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # where nobody is, unless a test starts a cluster


@pytest.fixture(scope="session")
def every_test_s_cluster() -> Iterator[RayCluster]:
    cluster = RayCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(every_test_s_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayCluster]:
    """A cluster of two nodes, which is the one that a feed uses."""
    cluster = every_test_s_cluster
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    yield cluster
    eventually(lambda: not cluster.makers(), "workers that made blocks are left")
    for node in [each for each in cluster.nodes if each.environment or is_gone(each.raylet)]:
        cluster.remove(node)
    while len(cluster.nodes) < 2:
        cluster.add()


@pytest.fixture
def new_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RayCluster]]:
    """Start a cluster of the test's own, which is the one that feeds use from then on."""
    started: list[RayCluster] = []

    def start(*args: Any, **options: Any) -> RayCluster:
        started.append(RayCluster(*args, **options))
        monkeypatch.setenv("RAY_ADDRESS", started[-1].address)
        return started[-1]

    yield start
    for cluster in started:
        cluster.close()


@pytest.fixture(scope="session")
def shard(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a shard."""
    return write_shard(tmp_path_factory.mktemp("shard"), SAMPLES)


class Training:
    """Three trainers of one feed, one of which is slow, with other batch sizes, until ``end`` is called."""

    samples = SAMPLES

    def __init__(self, train: Callable[..., Trainer], until: Path, source: dict[str, Any]) -> None:
        self._until = until
        window = source.pop("window")
        self.settings, self.options = source, {"linger": 0.5, "window": window, "workers": "ray"}
        self.trainers = [
            train(source=source, options=self.options, epochs=None, until=str(until), forks_feeders=True, **pace)
            for pace in ({"batch_size": 7}, {"batch_size": 32, "delay_s": 0.005}, {"batch_size": 77})
        ]

    @property
    def feeder(self) -> int:
        """The pid of the feeder."""
        return eventually(lambda: [feed.pid for feed in penstock.feeds()])[0]

    @property
    def bridge(self) -> int:
        """The pid of the bridge, which is waited for."""
        return eventually(lambda: bridge_of(self.feeder), "there is no bridge")

    @property
    def source(self) -> str:
        """What the feed tells of its source."""
        return eventually(lambda: [feed.source for feed in penstock.feeds()])[0]

    @property
    def output(self) -> str:
        """What the feeder and trainers printed."""
        return "".join(trainer.output for trainer in self.trainers)

    def is_made_by(self, workers: int, nodes: int) -> None:
        """Wait until so many workers on so many nodes make the blocks."""
        self.tells(f"made by {workers} worker{'s' * (workers > 1)} on {nodes} node{'s' * (nodes > 1)}")

    def is_loaded_by_the_feeder(self, *why: str) -> None:
        """Wait until the feeder loads by itself, and tells why."""
        self.tells("loaded by the feeder itself", *why)

    def tells(self, *words: str) -> None:
        """Wait until the feed tells all this of its source."""
        self._comes_to(lambda: all(each in self.source for each in words), f"never {words}")

    def _comes_to(self, what: Callable[[], bool], why: str) -> None:
        try:
            eventually(what)
        except AssertionError:
            raise AssertionError(f"{why}: {self.source}\n{self.output}") from None

    def goes_on(self, batches: int = 5) -> float:
        """Wait until each trainer has had some more batches; return the longest time that one waited for one."""
        each_waits_for(self.trainers, "epoch")
        goals = [len(trainer.events()) + batches for trainer in self.trainers]
        longest_s, last, last_s = 0.0, [0] * len(goals), [time.monotonic()] * len(goals)

        def all_have() -> bool:
            nonlocal longest_s
            for number, trainer in enumerate(self.trainers):
                if (had := len(trainer.events())) > last[number]:
                    longest_s = max(longest_s, time.monotonic() - last_s[number])
                    last[number], last_s[number] = had, time.monotonic()
            return all(had >= goal for had, goal in zip(last, goals, strict=True))

        self._comes_to(all_have, "trainers get no more batches")
        return longest_s

    def end(self) -> None:
        """End it after the epochs that have begun: each sample came once in each, and the bridge has ended."""
        feeder = self.feeder
        bridge = bridge_of(feeder)
        self._until.touch()
        each_has_all(self.trainers, self.samples)
        wait_until_gone(feeder, *([bridge] if bridge else []))


@pytest.fixture
def training(train: Callable[..., Trainer], tmp_path: Path, shard: str) -> Callable[..., Training]:
    """Start three trainers of a feed whose blocks a cluster makes; options are those of ``sources.records``."""

    numbers = itertools.count()

    def start(**source: Any) -> Training:
        source = {"kind": "records", "folder": shard, "pause_s": 0.001, "window": "4MiB", **source}
        return Training(train, tmp_path / f"until {next(numbers)}", source)

    return start
