"""Trainers that are themselves data-parallel: equally many batches for each rank, every sample once together."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.examples import examples

import penstock
from penstock.feed.trainer.sharding import batches

numbers = itertools.count()


def epochs_of_ranks(
    name: str, size: int, world: int, epochs: int = 2, **options: Any
) -> list[list[list[list[int]]]]:
    """[rank][epoch][batch]: the samples that each rank was given."""
    got: list[list[list[list[int]]]] = [[] for _ in range(world)]

    def train(rank: int) -> None:
        with penstock.attach(name, size, shard=(rank, world), **options) as loader:
            for _ in range(epochs):
                got[rank].append([np.asarray(batch["id"]).tolist() for batch in loader])

    threads = [threading.Thread(target=train, args=[rank]) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    samples=st.integers(1, 200),
    source=st.integers(1, 40),
    segments=st.integers(1, 6),
    size=st.integers(1, 30),
    world=st.integers(2, 4),
    drop_last=st.booleans(),
    borrow=st.booleans(),
)
def test_ranks_share_each_epoch_out(serve, samples, source, segments, size, world, drop_last, borrow):
    try:
        steps = batches(samples, size, world, drop_last=drop_last)
    except penstock.BadSetting:
        assume(False)
        raise
    name = f"feed {next(numbers)}"
    feeder = serve(penstock.ArraySource({"id": np.arange(samples)}, batch_size=source, segments=segments), name)
    got = epochs_of_ranks(name, size, world, drop_last=drop_last, borrow=borrow)
    feeder.close()
    for epoch in range(2):
        assert {len(rank[epoch]) for rank in got} == {steps}
        rows = [i for rank in got for batch in rank[epoch] for i in batch]
        assert len(set(rows)) == len(rows) == (steps * size * world if drop_last else samples)
        assert all(1 <= len(batch) <= size for rank in got for batch in rank[epoch])


def test_ranks_together_take_the_rows_that_one_trainer_would(serve):
    """Step by step: the rows of all ranks' batches are the next rows of the feed."""
    serve(penstock.ArraySource({"id": np.arange(100)}, batch_size=7, shuffle=False, segments=1))
    (whole,) = epochs_of_ranks("feed", 24, 1, epochs=1)
    ranks = epochs_of_ranks("feed", 8, 3, epochs=1)
    together = [[i for rank in ranks for i in rank[0][step]] for step in range(5)]
    assert [sorted(step) for step in together] == [sorted(batch) for batch in whole[0]]
    assert together[:4] == whole[0][:4]


def test_the_length_is_that_of_each_rank(serve):
    serve({"id": np.arange(100)})
    with penstock.attach("feed", 8, shard=(0, 3)) as loader:
        assert len(loader) == 5
    with penstock.attach("feed", 8, shard=(0, 3), drop_last=True) as loader:
        assert len(loader) == 4


def test_a_rank_waits_for_the_others_and_the_feed_says_so(serve):
    feeder = serve({"id": np.arange(100)})
    done = threading.Event()

    def train(rank: int) -> None:
        with penstock.attach("feed", 10, shard=(rank, 2)) as loader:
            for _ in loader:
                pass
        done.set()

    first = threading.Thread(target=train, args=[0])
    first.start()
    while [trainer.state for trainer in feeder.statistics().trainers] != ["waiting"]:
        done.wait(0.01)
    assert not done.is_set()
    with pytest.raises(penstock.Refused, match="rank 0 of 2 has joined already"):
        penstock.attach("feed", 10, shard=(0, 2))
    train(1)
    first.join()


def test_another_group_of_ranks_reads_the_same_feed_apart(serve, monkeypatch):
    serve(penstock.ArraySource({"id": np.arange(60)}, batch_size=6, segments=3))
    loaders: list[penstock.Loader] = []
    for port, rank in itertools.product(("1", "2"), (0, 1)):
        monkeypatch.setenv("MASTER_PORT", port)
        loaders.append(penstock.attach("feed", 10, shard=(rank, 2)))
    got: dict[int, list[int]] = {}

    def train(i: int) -> None:
        got[i] = [int(row) for batch in loaders[i] for row in batch["id"]]
        loaders[i].close()

    threads = [threading.Thread(target=train, args=[i]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got[0] + got[1]) == sorted(got[2] + got[3]) == list(range(60))


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_of_a_source_of_unknown_length_get_whole_steps(serve, world):
    serve([{"id": np.arange(i, i + 7)} for i in range(0, 98, 7)])
    with pytest.raises(penstock.BadSetting, match="pass drop_last=True"):
        penstock.attach("feed", 5, shard=(0, world))
    got = epochs_of_ranks("feed", 5, world, drop_last=True)
    steps = 98 // (5 * world)
    for epoch in range(2):
        assert {len(rank[epoch]) for rank in got} == {steps}
        rows = sorted(i for rank in got for batch in rank[epoch] for i in batch)
        assert rows == list(range(steps * 5 * world))


def test_what_cannot_be_dealt_evenly_is_refused_with_the_remedy(serve):
    serve({"id": np.arange(7)})
    with pytest.raises(penstock.BadSetting, match=r"7 samples cannot be split among 2 ranks"):
        penstock.attach("feed", 1, shard=(0, 2))
    with pytest.raises(penstock.BadSetting, match=r"drop_last=True"):
        penstock.attach("feed", 4, shard=(0, 9))
