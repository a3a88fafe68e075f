"""The environment puts a run on another feed of a name, and sets workers; `stop` ends a feed on purpose."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.feed.reading import ids_of

import penstock

pytestmark = pytest.mark.whole


def make(samples: int = 40) -> Any:
    return penstock.ArraySource({"id": np.arange(samples)}, batch_size=10)


def make_torch(iterable: bool, **options: Any) -> Any:
    from tests.sources.drawing import Drawing, DrawingStream
    from torch.utils.data import DataLoader

    return DataLoader(DrawingStream(40) if iterable else Drawing(40), batch_size=4, **options)


@pytest.mark.usefixtures("forks_feeders")
def test_a_suffix_puts_runs_on_another_feed_of_the_name(monkeypatch):
    with penstock.share(make, "numbers", linger=0.5) as one:
        monkeypatch.setenv("PENSTOCK_FEED_SUFFIX", "slow")
        with (
            penstock.share(functools.partial(make, 50), "numbers", linger=0.5) as other,
            penstock.attach("numbers") as third,
        ):
            assert (one.name, other.name, third.name) == ("numbers", "numbers-slow", "numbers-slow")
            assert [len(ids_of(loader)) for loader in (one, other, third)] == [40, 50, 50]
            assert [feed.name for feed in penstock.feeds()] == ["numbers", "numbers-slow"]


@pytest.mark.usefixtures("forks_feeders")
def test_a_suffix_is_read_once_so_that_a_failover_finds_the_feed_again(monkeypatch):
    monkeypatch.setenv("PENSTOCK_FEED_SUFFIX", "x")
    with penstock.share(make, "numbers", linger=0.5) as loader:
        batches = iter(loader)
        next(batches)
        monkeypatch.delenv("PENSTOCK_FEED_SUFFIX")
        os.kill(loader.statistics().feeder_pid, 9)
        assert len(ids_of(loader)) == 40
        assert loader.statistics().name == "numbers-x"


@pytest.mark.usefixtures("forks_feeders")
@pytest.mark.parametrize("suffix", ["x" * 1000, os.fsdecode(b"\xff")])
def test_a_suffix_that_makes_no_name_is_refused_by_name(suffix, monkeypatch, feeds_directory):
    monkeypatch.setenv("PENSTOCK_FEED_SUFFIX", suffix)
    for join in (lambda: penstock.share(make, "numbers"), lambda: penstock.attach("numbers")):
        says = r"^PENSTOCK_FEED_SUFFIX='.*' is appended to 'numbers': a feed"
        with pytest.raises(penstock.errors.BadSetting, match=says):
            join()
    assert not list(feeds_directory.iterdir())


@pytest.mark.usefixtures("forks_feeders")
def test_an_empty_variable_is_as_none(monkeypatch):
    monkeypatch.setenv("PENSTOCK_FEED_SUFFIX", "")
    monkeypatch.setenv("PENSTOCK_FEED_WORKERS", "")
    with penstock.share(make, "numbers", linger=0.5) as loader:
        assert loader.name == "numbers"


KEEPS = {"num_workers": 1, "persistent_workers": True, "timeout": 50, "prefetch_factor": 3}


@pytest.mark.parametrize(("own", "given", "iterable"), [({"num_workers": 2}, "1", True), (KEEPS, "0", False)])
@pytest.mark.usefixtures("forks_feeders_with_torch")
def test_the_workers_of_a_feeder_are_those_of_the_environment_and_are_told(own, given, iterable, monkeypatch):
    monkeypatch.setenv("PENSTOCK_FEED_WORKERS", given)
    with penstock.share(functools.partial(make_torch, iterable, **own), "torch", linger=0.5) as loader:
        for _ in range(2):
            assert sorted(ids_of(loader)) == list(range(40))
        (feed,) = penstock.feeds()
        assert f", {given} workers)" in feed.source


def test_the_workers_that_a_script_names_win_over_those_of_the_environment(forks_feeders_with_torch, monkeypatch):
    monkeypatch.setenv("PENSTOCK_FEED_WORKERS", "2")
    make = functools.partial(make_torch, False)
    with penstock.share(make, "torch", linger=0.5, workers=1) as loader:
        assert ", 1 workers)" in penstock.feeds()[0].source
        assert sorted(ids_of(loader)) == list(range(40))
        with penstock.share(make, "torch", workers=3) as other:
            assert sorted(ids_of(other)) == list(range(40))
        (feed,) = penstock.feeds()
        assert ", 1 workers)" in feed.source


@pytest.mark.usefixtures("forks_feeders")
def test_a_cluster_makes_no_blocks_of_a_feed_without_one_nor_such_as_cannot_be_made_one_by_one(monkeypatch):
    says = r"workers=None where you asked for 'ray:4'. Leave workers out"
    with penstock.share(make, "numbers", linger=0.5), pytest.raises(penstock.errors.SettingsDiffer, match=says):
        penstock.share(make, "numbers", workers="ray:4")
    monkeypatch.setenv("PENSTOCK_FEED_WORKERS", "2")
    says = r'workers="ray": the blocks of .* cannot be made one by one'
    with pytest.raises(penstock.errors.BadSetting, match=says):
        penstock.share(lambda: [{"id": np.arange(4)}], "batches", workers="ray")


@pytest.mark.usefixtures("forks_feeders")
@pytest.mark.parametrize("workers", ["abc", "-1", "2.5", "100000", " ", "0x2"])
def test_what_is_no_number_of_workers_is_refused_by_name(workers, monkeypatch, feeds_directory):
    monkeypatch.setenv("PENSTOCK_FEED_WORKERS", workers)
    says = r"^PENSTOCK_FEED_WORKERS=.*a whole number between 0 and 4,096"
    with pytest.raises(penstock.errors.BadSetting, match=says):
        penstock.share(make, "numbers")
    assert not list(feeds_directory.iterdir())


def test_a_stream_that_may_not_be_divided_gets_no_more_workers(forks_feeders_with_torch, monkeypatch):
    monkeypatch.setenv("PENSTOCK_FEED_WORKERS", "2")
    with pytest.raises(penstock.errors.BadSetting, match="2 workers for a loader of 1, over an IterableDataset"):
        penstock.share(functools.partial(make_torch, True, num_workers=1), "torch", linger=0.5)


@pytest.mark.parametrize(("mode", "content"), [("r", 0.0), ("w+", 1.0)])
@pytest.mark.usefixtures("forks_feeders")
def test_a_mapped_array_arrives_as_it_was_opened(tmp_path, mode, content):
    """What a function holds travels: a map that the script may write to, may be written to in the feeder."""
    there = np.memmap(tmp_path / "rows", np.float64, "w+", shape=40)
    there.flush()
    rows = np.memmap(tmp_path / "rows", np.float64, mode, shape=40)  # type: ignore[call-overload]

    def fill() -> Any:
        if mode == "w+":
            rows[:] = content
        return penstock.ArraySource({"x": np.asarray(rows)}, batch_size=10)

    with penstock.share(fill, "numbers", linger=0.5) as loader:
        assert {x for batch in loader for x in batch["x"].tolist()} == {content}
    assert set(there.tolist()) == {content}


def numbers() -> penstock.ArraySource:
    return penstock.ArraySource({"id": np.arange(1000)}, batch_size=10)


JOINS: dict[str, Callable[[], penstock.Loader]] = {
    "attach": lambda: penstock.attach("feed", 10),
    "share": lambda: penstock.share(numbers, "feed", 10),
}


@pytest.mark.parametrize("join", JOINS.values(), ids=list(JOINS))
def test_a_trainer_of_a_feed_that_is_stopped_is_told_by_whom_and_goes_on_when_it_is_started_again(join):
    with penstock.share(numbers, "feed", 10, linger=1.0) as starter, join() as loader:
        batches = iter(loader)
        before = [next(batches)["id"] for _ in range(3)]
        state = loader.state_dict()
        feeder = starter.statistics().feeder_pid
        assert penstock.stop("feed") == (feeder, ())
        with pytest.raises(penstock.errors.FeedStopped) as told:
            list(batches)
        assert f"process {feeder}" in str(told.value)
        assert f"was stopped by process {os.getpid()}" in str(told.value)
        assert "start the feed again and load the last state_dict()" in str(told.value)
        assert loader.statistics().failovers == 0
        assert penstock.feeds() == []
    with penstock.share(numbers, "feed", 10, linger=0.0) as again:
        again.load_state_dict(state)
        ids = np.concatenate(before + [batch["id"] for batch in again])
    assert sorted(ids) == list(range(1000))


def test_who_catches_a_lost_feeder_catches_a_stopped_feed_too(serve):
    serve(numbers())
    with penstock.attach("feed") as loader:
        penstock.stop("feed")
        with pytest.raises(penstock.errors.FeederLost):
            list(loader)
