"""Streams: feeders and trainers that die around a cut, at different paces; a feed that is ended while it waits."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.kafka import MockKafka
from tests.faults.conftest import Trainer, each_waits_for, eventually

import penstock


class Writer(ABC):
    """Adds numbers to a log."""

    log: str

    def __init__(self, pause_s: float) -> None:
        self.pause_s, self.count = pause_s, 0
        self.add(50)

    @abstractmethod
    def add(self, records: int) -> None: ...

    @contextmanager
    def writing(self) -> Iterator[None]:
        ends = threading.Event()

        def write() -> None:
            while not ends.wait(self.pause_s):
                self.add(7)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()

    def close(self) -> None:  # noqa: B027 - few hold something
        """End what it writes to."""


class TopicWriter(Writer):
    def __init__(self, folder: Path, pause_s: float) -> None:
        self._mock = MockKafka(partitions=1)
        self.log, self.close = f"kafka://{self._mock.address}", self._mock.close
        super().__init__(pause_s)

    def add(self, records: int) -> None:
        self._mock.append(0, [b"%d" % i for i in range(self.count, self.count + records)])
        self.count += records


class FolderWriter(Writer):
    """To the lines of files, each renamed in with its first ones."""

    def __init__(self, folder: Path, pause_s: float) -> None:
        self.folder, self.log = folder, f"watch:{folder}"
        folder.mkdir()
        super().__init__(pause_s)

    def add(self, records: int) -> None:
        path = self.folder / f"{self.count // 1000:06}.jsonl"
        lines = b"".join(b"%d\n" % i for i in range(self.count, self.count + records))
        self.count += records
        if path.exists():
            with open(path, "ab") as file:
                file.write(lines)
        else:
            (path.parent / f".{path.name}").write_bytes(lines)
            (path.parent / f".{path.name}").rename(path)


def stretches(trainer: Trainer) -> dict[int, list[int]]:
    """What a trainer received, epoch by epoch: each is a stretch of the log, and each follows the one before."""
    assert trainer.wait() == 0, trainer.output
    assert not [event for event in trainer.events() if "error" in event], trainer.events()[-1]
    found = {epoch: trainer.ids(epoch) for epoch in trainer.ended_epochs()}
    following = None
    for ids in found.values():
        if ids:
            assert sorted(ids) == list(range(min(ids), min(ids) + len(ids))), (
                "a record was lost, or is of another cycle"
            )
            assert following in (None, min(ids)), "records between two cycles were lost, or came twice"
            following = min(ids) + len(ids)
    return found


def agree(trainers: list[Trainer]) -> None:
    """All had the cycles that they shared from the same stretches, in one order."""
    cycle_of: dict[int, list[int]] = {}  # by record
    for trainer in trainers:
        for ids in stretches(trainer).values():
            for id in ids:
                assert cycle_of.setdefault(id, ids) == ids, (
                    "two trainers had a record in two cycles, or two orders"
                )


@pytest.mark.parametrize("kind", [FolderWriter, TopicWriter])
@pytest.mark.parametrize(
    "kills",
    [
        4,
        pytest.param(40, marks=pytest.mark.whole),
        pytest.param(1000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_a_feeder_killed_around_a_cut_costs_nobody_a_record(
    train: Callable[..., Trainer], tmp_path: Path, kills: int, kind: type[FolderWriter | TopicWriter]
):
    writer, until = kind(tmp_path / "log", 0.02), str(tmp_path / "until")
    source = {"kind": "stream", "log": writer.log}
    order = {"source": source, "epochs": None, "until": until, "options": {"linger": 1.0, "window": 100_000}}
    chance = random.Random(kills)
    with writer.writing():
        trainers = [train(**order, batch_size=7, delay_s=0.001), train(**order, batch_size=10, delay_s=0.02)]
        each_waits_for(trainers, "epoch")
        for _ in range(kills):
            time.sleep(chance.uniform(0, 0.4))
            pid = eventually(lambda: [feed.pid for feed in penstock.feeds()])[0]
            os.kill(pid, signal.SIGKILL)
            for trainer in trainers:  # among a thousand feeders, a later one may have the number of an earlier one
                eventually(lambda t=trainer, killed=pid: t.events()[-1].get("feeder") not in (None, killed))
        Path(until).touch()
        for trainer in trainers:
            trainer.wait()
    writer.close()
    agree(trainers)
    assert all(1 <= trainer.wait_for("done")["done"] <= kills for trainer in trainers)


def test_a_state_goes_on_with_the_next_record_where_nothing_but_the_log_is_left(
    train: Callable[..., Trainer], tmp_path: Path
):
    writer = FolderWriter(tmp_path / "log", 0.0)
    writer.add(400)
    source = {"kind": "stream", "log": writer.log}
    order = {"source": source, "epochs": None, "options": {"linger": 0.0}, "save": True}
    first = train(**order, batches=20, directory=tmp_path / "here")
    assert first.wait() == 0, first.output
    states = [event["state"] for event in first.events() if "state" in event]
    for place in (3, 8, 19):  # amid a cycle; behind one's last batch; in the third cycle
        after = train(
            **{**order, "epochs": None}, resume=states[place], batches=20 - place, directory=tmp_path / str(place)
        )
        assert after.wait() == 0, after.output
        rest = [ids for epoch in sorted(_epochs(first)) for ids in _epochs(first)[epoch]][place + 1 :]
        again = [ids for epoch in sorted(_epochs(after)) for ids in _epochs(after)[epoch]][: len(rest)]
        assert again == rest


def _epochs(trainer: Trainer) -> dict[int, list[list[int]]]:
    found: dict[int, list[list[int]]] = {}
    for event in trainer.events():
        if "ids" in event:
            found.setdefault(event["epoch"], []).append(event["ids"])
    return found


@pytest.mark.parametrize("ends", ["stop", "SIGKILL", "SIGINT"])
def test_a_feed_that_waits_for_records_ends(train: Callable[..., Trainer], tmp_path: Path, ends: str):
    writer = FolderWriter(tmp_path / "log", 0.0)
    source = {"kind": "stream", "log": writer.log, "cycle": 50}
    trainer = train(source=source, epochs=None, options={"linger": 0.2})
    trainer.wait_for("end")
    eventually(lambda: [feed.waits_for for feed in penstock.feeds()] == ["0 of 50 records"])
    if ends == "stop":
        penstock.stop("feed")
        assert trainer.fails("FeedStopped", "was stopped by process")
    else:
        trainer.signal(ends)  # SIGINT as by Ctrl-C, while its loop waits
    eventually(lambda: not penstock.feeds())


def test_trainers_that_die_and_come_leave_the_others_their_records(train: Callable[..., Trainer], tmp_path: Path):
    writer, until = FolderWriter(tmp_path / "log", 0.02), str(tmp_path / "until")
    source = {"kind": "stream", "log": writer.log}
    order: dict[str, Any] = {"source": source, "epochs": None, "until": until, "options": {"linger": 1.0}}
    with writer.writing():
        stays = train(**order)
        stays.wait_for("end")
        for _ in range(3):
            other = train(**order)
            other.wait_for("epoch")
            other.signal("SIGKILL")
            other.wait()
        late = train(**order)
        late.wait_for("end", 2)
        Path(until).touch()
        stays.wait()
        late.wait()
    agree([stays, late])
