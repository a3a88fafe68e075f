"""Real trainers and feeders in processes of their own, and what they say that they received."""

from __future__ import annotations

import gc
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.autosharing.conftest import scripts  # noqa: F401 - a fixture
from tests.faults.interrupting import open_files
from tests.forked import Forked, ForkServer, eventually
from tests.runs.conftest import launch  # noqa: F401 - a fixture

import penstock

HERE = Path(__file__).parent


class Run(Forked):
    """A process of the test's own."""

    def __init__(self, server: ForkServer, script: str, order: Any, output: Path, **options: Any) -> None:
        super().__init__(server, str(HERE / script), [json.dumps(order)], output, **options)

    def stop(self) -> None:
        """Stop it, as a debugger does, until it gets SIGCONT."""
        self.signal("SIGSTOP")
        eventually(self.stopped)

    def stopped(self) -> bool:
        return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED

    def interrupt(self) -> None:
        """End it by Ctrl-C."""
        self.signal("SIGINT")
        self.wait()


class Trainer(Run):
    """A trainer, and the events that it wrote."""

    def __init__(self, server: ForkServer, order: dict[str, Any], directory: Path, **options: Any) -> None:
        self.log = directory / "events"
        self.log.touch()
        self._events: list[dict[str, Any]] = []
        self._read_bytes = 0
        self._parts: list[list[int]] = order["parts"]
        order = {**order, "log": str(self.log)}
        super().__init__(server, "trainer.py", order, directory / "output", **options)

    def events(self) -> list[dict[str, Any]]:
        with open(self.log, "rb") as file:
            file.seek(self._read_bytes)
            for line in file:
                if not line.endswith(b"\n"):  # its rest may have come by the next look at the file
                    break
                self._read_bytes += len(line)
                self._events.append(json.loads(line))
        return self._events

    def wait_for(self, key: str, times: int = 1) -> dict[str, Any]:
        """The event that has ``key`` for the n-th time."""

        def found() -> list[dict[str, Any]] | None:
            events = [event for event in self.events() if key in event]
            if len(events) < times and self.ended and not self._has(key, times):
                raise AssertionError(
                    f"trainer {self.pid} ended without {key!r}: {self.events()[-2:]} {self.output}"
                )
            return events if len(events) >= times else None

        return eventually(found, f"trainer {self.pid} never came to {key!r} ({times}): {self.output}")[times - 1]

    def _has(self, key: str, times: int) -> bool:
        return sum(key in event for event in self.events()) >= times

    def has_heard_of(self, feeder: int) -> bool:
        """Whether it has had a connection to this feeder."""
        return any(feeder in (event.get("joined"), event.get("feeder")) for event in self.events())

    def ids(self, epoch: int) -> list[int]:
        """The samples that it received in an epoch, in order; each once, with the bytes that it should have."""
        ids = self._received(self.events()).get(epoch, [])
        assert len(set(ids)) == len(ids), f"a sample came twice in epoch {epoch}"
        return ids

    def _received(self, events: list[dict[str, Any]]) -> dict[int, list[int]]:
        received: dict[int, list[int]] = {}
        for batch in events:
            if "epoch" in batch:
                assert batch["right"], "a batch had bytes that are not its own"
                received.setdefault(batch["epoch"], []).extend(batch["ids"])
        return received

    def ended_epochs(self) -> list[int]:
        return [event["end"] for event in self.events() if "end" in event]

    def fails(self, error: str, *says: str) -> dict[str, Any]:
        """Wait until it has failed with this error, whose message says all this."""
        event = self.wait_for("error")
        assert event["error"] == error, event
        assert not [part for part in says if part not in event["message"]], event["message"]
        return event

    def has_all(self, samples: int, epochs: int | None = None) -> None:
        """It got every sample, or its part, exactly once in each epoch that it ended, and failed in none."""
        assert self.wait() == 0, self.output
        assert not [event for event in self.events() if "error" in event], self.events()[-1]
        ended = self.ended_epochs()
        assert ended, "not one epoch came to its end"
        assert epochs is None or ended == list(range(epochs))
        received = self._received(self.events())
        for epoch in ended:
            assert sorted(received[epoch]) == self.part(epoch, samples), f"epoch {epoch}"

    def part(self, epoch: int, samples: int) -> list[int]:
        """What it takes in an epoch."""
        parts = self._parts or [list(range(samples))]
        return sorted(parts[epoch % len(parts)])


def each_waits_for(trainers: Sequence[Trainer], key: str, times: int = 1) -> None:
    """Wait until each trainer has had this event."""
    for trainer in trainers:
        trainer.wait_for(key, times)


def each_has_all(trainers: Sequence[Trainer], samples: int, epochs: int | None = None) -> None:
    """Each trainer got every sample; see ``Trainer.has_all``."""
    for trainer in trainers:
        trainer.has_all(samples, epochs)


def all_is_given_back(feeder: penstock.Feeder) -> None:
    """No trainer is there any more, and no block is held for one."""
    eventually(lambda: not feeder.statistics().trainers)
    eventually(lambda: feeder.statistics().used_bytes == 0)  # also the block that it is writing


@contextmanager
def unhurt(feeder: penstock.Feeder, trainers: Sequence[Trainer], until: Path) -> Iterator[None]:
    """What happens within costs these trainers nothing: they began before, and end after ``until`` is there."""
    each_waits_for(trainers, "epoch")
    yield
    until.touch()
    each_has_all(trainers, 1000)
    all_is_given_back(feeder)


def descriptors() -> dict[str, int]:
    """What this process has open, by kind."""
    return Counter(file.split(":[")[0] for file in open_files().values())


def ring_maps() -> int:
    """How many mappings of rings this process has, but for what waits for the garbage collector."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("penstock-ring")


@pytest.fixture
def processes() -> Iterator[list[Run]]:
    """Every process of the test; what still runs at its end is killed."""
    runs: list[Run] = []
    yield runs
    for run in runs:
        run.kill()


@pytest.fixture
def train(
    servers: dict[str, ForkServer], processes: list[Run], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Trainer]:
    """Start a trainer: it attaches to ``feed``, or shares ``source``. With ``torch`` it has imported that.

    It finds feeds in ``directory``, as on another machine, if that is given.

    With ``forks_feeders``, so has the feeder that it starts.
    """

    def start(
        name: str = "feed",
        *,
        torch: bool = False,
        process_group: int | None = None,
        forks_feeders: bool = False,
        directory: Path | None = None,
        **order: Any,
    ) -> Trainer:
        whole = {
            "name": name,
            "batch_size": 7,
            "epochs": 2,
            "delay_s": 0.0,
            "options": {},
            "keep": 0,
            "save": False,
        }
        whole |= {"parts": [], **dict.fromkeys(("batches", "source", "until", "hurt", "pause", "resume")), **order}
        server = servers["torch" if torch else "numpy"]
        folder = tmp_path_factory.mktemp("trainer")
        environment = None if directory is None else {**os.environ, "PENSTOCK_DIR": str(directory)}
        options = {"forks_feeders": forks_feeders, "environment": environment}
        trainer = Trainer(server, whole, folder, process_group=process_group, **options)
        processes.append(trainer)
        return trainer

    return start


@pytest.fixture
def feed(
    servers: dict[str, ForkServer], processes: list[Run], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Run]:
    """Start a feeder in a process of its own, on ``feed``."""

    def start(
        kind: str = "rows",
        name: str = "feed",
        *,
        source: Any = None,
        process_group: int | None = None,
        **settings: Any,
    ) -> Run:
        order = {"name": name, "source": {"kind": kind, **(source or {})}, "settings": settings}
        output = tmp_path_factory.mktemp("feeder") / "output"
        server = servers["torch" if kind == "loader" or "memory" in settings else "numpy"]
        run = Run(server, "feeder.py", order, output, process_group=process_group)
        processes.append(run)
        return run

    return start


@pytest.fixture
def clean() -> Iterator[None]:
    """This process ends the test with the descriptors and ring mappings that it had."""
    before, maps = descriptors(), ring_maps()
    gc.freeze()  # what has been imported since the last test is looked through once, not at the end again
    yield
    penstock.feeds()
    maps_now = ring_maps()
    now = descriptors()
    kinds = ("socket", "/memfd", "anon_inode", "pipe")
    more = {kind: n - before.get(kind, 0) for kind, n in now.items() if kind.startswith(kinds)}
    assert not any(n > 0 for n in more.values()), f"descriptors left behind: {more}"
    assert maps_now <= maps
