"""Ranks of one run on several machines, each with its machine's feed: here, directories of feeds."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.faults.conftest import each_waits_for, eventually

import penstock

pytestmark = pytest.mark.whole

SAMPLES = 1000


@pytest.fixture
def machines(tmp_path: Path) -> list[Path]:
    """Where the feeds of two machines lie."""
    found = [tmp_path / "one", tmp_path / "other"]
    for each in found:
        each.mkdir(mode=0o700)
    return found


def feeders(machine: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The feeders of a machine."""
    with monkeypatch.context() as patch:
        patch.setenv("PENSTOCK_DIR", str(machine))
        return [feed.pid for feed in penstock.feeds()]


def each_epoch(ranks: list[Any], epochs: int) -> list[list[int]]:
    """What all ranks together got in each epoch, once all have ended."""
    for rank in ranks:
        assert rank.wait() == 0, rank.output
        assert rank.ended_epochs() == list(range(epochs))
    return [[id for rank in ranks for id in rank.ids(epoch)] for epoch in range(epochs)]


@pytest.mark.parametrize("kind", ["rows", "loader"])
def test_ranks_on_two_machines_get_each_sample_once_also_when_a_feeder_dies(kind, train, machines, monkeypatch):
    source = {"kind": "rows", "samples": SAMPLES, "width": 500, "segments": None}
    if kind == "loader":
        source = {"kind": "loader", "samples": SAMPLES}
    ranks = [
        train(
            source=source,
            torch=kind == "loader",
            options={"linger": 1.0, "window": 60_000, "shard": (rank, 3), "across": True},
            directory=machines[rank % 2],
            forks_feeders=True,
            epochs=3,
            delay_s=0.01,
        )
        for rank in range(3)
    ]
    each_waits_for(ranks, "epoch", times=5)
    (killed,) = feeders(machines[0], monkeypatch)
    os.kill(killed, signal.SIGKILL)
    for epoch in each_epoch(ranks, 3):
        assert sorted(epoch) == list(range(SAMPLES))


def test_a_rank_that_begins_later_begins_where_the_others_did(train, machines):
    def rank(number: int, **more: Any) -> Any:
        options = {"linger": 1.0, "shard": (number, 2), "across": True}
        source = {"kind": "rows", "samples": SAMPLES, "segments": None}
        more |= {"directory": machines[number], "forks_feeders": True}
        return train(source=source, options=options, epochs=2, **more)

    first = rank(0, delay_s=0.002)
    first.wait_for("end")
    for epoch in each_epoch([first, rank(1)], 2):
        assert sorted(epoch) == list(range(SAMPLES))


def test_the_order_of_a_feed_that_spans_machines_is_that_of_no_other():
    with pytest.raises(penstock.errors.BadSetting, match="another order"):
        state = state_of("alone", across=False)
        state_of("across", across=True, state=state)


def state_of(name: str, *, across: bool, state: Any = None) -> Any:
    def make() -> penstock.ArraySource:
        return penstock.ArraySource(list(range(100)), batch_size=10)

    with penstock.share(make, name, across=across, linger=0.1) as loader:
        if state is not None:
            loader.load_state_dict({**state, "feed": name})
        next(iter(loader))
        return loader.state_dict()


def test_a_late_run_begins_at_the_next_segment(serve: Any) -> None:
    feeder = serve(penstock.ArraySource({"id": list(range(160))}, batch_size=2, segments=4), "late", across=True)
    with penstock.attach("late", 2) as early, penstock.attach("late", 2) as late:
        batches = iter(early)
        for _ in range(3):
            next(batches)
        own = [id for batch in late for id in batch["id"]]
        assert sorted(own) == list(range(160))
        assert feeder.statistics().segments == 4
    eventually(lambda: not feeder.statistics().trainers)
