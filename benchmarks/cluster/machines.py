"""A Ray cluster of several nodes on this machine, and machines that train: each has feeds of its own."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from benchmarks.children import ENVIRONMENT, command
from benchmarks.measure.pool import MeasuredProcess, MemberFailed, ProcessPool

import penstock

STORE_BYTES = 2 << 30
_LIMIT_S = 300.0


class Nodes:
    """A head without cores, and nodes that decode."""

    def __init__(self, cores: Sequence[int], port: int = 0) -> None:
        from ray.cluster_utils import Cluster

        options = {"object_store_memory": STORE_BYTES}
        head = {
            "num_cpus": 0,
            "include_dashboard": False,
            **options,
            **({"gcs_server_port": port} if port else {}),
        }
        self.cluster = Cluster(True, head_node_args=head)
        self.cores = cores  # cores of each node
        self.nodes = [self.cluster.add_node(num_cpus=count, **options) for count in cores]
        os.environ.update(RAY_ADDRESS=self.cluster.address, PENSTOCK_RAY_OPEN="1")

    def processes(self, node: int) -> list[psutil.Process]:
        """Return the raylet of a node, and all below it."""
        (info,) = self.nodes[node].all_processes["raylet"]
        raylet = psutil.Process(info.process.pid)
        return [raylet, *raylet.children(recursive=True)]

    def conductor(self) -> psutil.Process:
        """Return the process of the conductor."""
        for process in psutil.process_iter(["cmdline"]):
            if any("ray::Conductor" in word for word in process.info["cmdline"] or ()):
                return process
        raise LookupError("there is no conductor")

    def score(self, feed: str) -> Any:
        """Return how a feed's conductor stands."""
        import ray
        from penstock.sources.remote.conductor import conductor_of

        ray.init(address=self.cluster.address, namespace="penstock", log_to_driver=False, logging_level="ERROR")
        try:
            return ray.get(ray.get_actor(conductor_of(feed)).score.remote(), timeout=10)
        finally:
            ray.shutdown()

    def close(self) -> None:
        self.cluster.shutdown()


@contextmanager
def nodes(*cores: int, port: int = 0) -> Generator[Nodes]:
    found = Nodes(cores, port)
    try:
        yield found
    finally:
        found.close()


class Measured(NamedTuple):
    """What a trainer got."""

    rows_per_s: float  # samples a second
    gap_s: float  # longest time between two batches
    wrong: int  # samples that came twice in an epoch, or not at all in one that ended
    source: str  # who made them at the end


class Machines:
    """Trainers, each on a machine with feeds of its own."""

    def __init__(self, folder: Path, pool: ProcessPool) -> None:
        self._folder, self._pool = folder, pool
        self.members: list[MeasuredProcess] = []

    def start(self, count: int, enter: Callable[[int], list[str]] = lambda _: [], **feed: Any) -> None:
        """Start trainers that share a feed, and wait until each has a batch; ``enter`` goes before a machine's."""
        before = len(self.members)
        for i in range(count):
            where = self._folder / f"machine {len(self.members)}"
            where.mkdir(mode=0o700, exist_ok=True)
            words = [*enter(i), *command("benchmarks.cluster.trainer", json.dumps(feed))]
            environment = {**ENVIRONMENT, "PENSTOCK_DIR": str(where)}
            self.members += self._pool.start(words, 1, environment)
        for member in self.members[before:]:
            member.hear_of("ready", time.monotonic() + _LIMIT_S)

    def measure(self, seconds: float) -> list[Measured]:
        """Let all of them train for some seconds."""
        self.begin(seconds)
        return list(self.ended())

    def begin(self, seconds: float) -> None:
        for member in self.members:
            member.send(seconds)

    def stop(self, machine: int, number: signal.Signals = signal.SIGSTOP) -> None:
        """Send a machine's trainer and its feeder a signal, and all that these have started."""
        trainer = psutil.Process(self.members[machine].pid)
        feeders = [each for each in psutil.process_iter() if _is_on(each, self._folder / f"machine {machine}")]
        for each in {trainer, *feeders, *(child for one in feeders for child in one.children(recursive=True))}:
            each.send_signal(number)

    def source(self, machine: int) -> str:
        """Return what a machine's feed tells of its source."""
        own = os.environ.get("PENSTOCK_DIR")
        os.environ["PENSTOCK_DIR"] = str(self._folder / f"machine {machine}")
        try:
            return penstock.feeds()[0].source
        finally:
            os.environ.pop("PENSTOCK_DIR")
            if own is not None:
                os.environ["PENSTOCK_DIR"] = own

    def ended(self) -> Iterator[Measured]:
        for member in self.members:
            answer = member.hear_of("rows_per_s", time.monotonic() + _LIMIT_S)
            yield Measured(**{name: answer[name] for name in Measured._fields})


def _is_on(process: psutil.Process, machine: Path) -> bool:
    try:
        return process.environ().get("PENSTOCK_DIR") == str(machine)
    except psutil.Error:
        return False


@contextmanager
def machines(folder: Path) -> Generator[Machines]:
    with ProcessPool(folder) as pool:
        found = Machines(folder, pool)
        try:
            yield found
        except MemberFailed as error:
            raise MemberFailed(f"{error}: {pool.errors()}") from None
        finally:
            for member in found.members:
                member.end_input()
