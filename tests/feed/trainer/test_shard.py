"""Trainers that are themselves data-parallel: equally many batches for each rank, every sample once together."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.feed.reading import at_once, ids_of
from torch.utils.data import DataLoader, DistributedSampler

import penstock
from penstock.sources.sharding import batches

numbers = itertools.count()


def drawn(**strategies: st.SearchStrategy[Any]) -> Callable[[Any], Any]:
    """Draw a test's feed, and how it is read."""
    feed = {"samples": st.integers(1, 200), "source": st.integers(1, 40), "segments": st.integers(1, 6)}
    options = settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
    return lambda test: options(given(**feed, drop_last=st.booleans(), **strategies)(test))


def epochs_of_ranks(
    name: str, size: int | None, world: int, epochs: int = 2, **options: Any
) -> list[list[list[list[int]]]]:
    """[rank][epoch][batch]: the samples that each rank was given."""

    def train(rank: int) -> list[list[list[int]]]:
        with penstock.attach(name, size, shard=(rank, world), **options) as loader:
            return [[np.asarray(batch["id"]).tolist() for batch in loader] for _ in range(epochs)]

    return at_once(train, world)


def epochs_of_arrays(serve: Any, samples: int, source: int, segments: int, *asked: Any, **options: Any) -> Any:
    """What ``epochs_of_ranks`` returns of a feed of rows 0 to ``samples``, in blocks of ``source``."""
    name = f"feed {next(numbers)}"
    feeder = serve(penstock.ArraySource({"id": np.arange(samples)}, batch_size=source, segments=segments), name)
    got = epochs_of_ranks(name, *asked, **options)
    feeder.close()
    return got


def rows_of(epoch: int, ranks: list[list[list[list[int]]]]) -> list[int]:
    """The rows that all ranks were given in an epoch."""
    return [row for rank in ranks for batch in rank[epoch] for row in batch]


def torchs_batches(samples: int, size: int, world: int, *, drop_last: bool) -> list[int]:
    """How many rows each batch of a rank has under torch's ``DistributedSampler``."""
    rows: Any = range(samples)
    sampler: Any = DistributedSampler(rows, world, 0)
    return list(DataLoader(rows, size, sampler=sampler, drop_last=drop_last, collate_fn=len))


@drawn(size=st.integers(1, 30), world=st.integers(1, 4), borrow=st.booleans())
def test_padded_ranks_get_what_torchs_sampler_counts(
    serve, samples, source, segments, size, world, drop_last, borrow
):
    got = epochs_of_arrays(
        serve, samples, source, segments, size, world, drop_last=drop_last, borrow=borrow, pad=True
    )
    torchs = torchs_batches(samples, size, world, drop_last=drop_last)
    for epoch in range(2):
        assert [[len(batch) for batch in rank[epoch]] for rank in got] == [torchs] * world
        assert len({*rows_of(epoch, got)}) == (min(samples, sum(torchs) * world) if drop_last else samples)


@drawn(world=st.integers(1, 4))
def test_padded_ranks_of_whole_batches_take_as_many_steps_as_torchs_sampler_counts(
    serve, samples, source, segments, world, drop_last
):
    """Also when they join in the middle of a cycle, whose short batch then comes in the middle of their epoch."""
    name = f"feed {next(numbers)}"
    arrays = penstock.ArraySource({"id": np.arange(samples)}, batch_size=source, segments=segments)
    feeder = serve(arrays, name, whole_batches=True)
    with penstock.attach(name) as early:
        next(iter(early), None)  # from now on the others begin at the second segment, if there is one
        got = epochs_of_ranks(name, None, world, drop_last=drop_last, pad=True)
    feeder.close()
    steps = len(torchs_batches(samples, source, world, drop_last=drop_last))
    for epoch in range(2):
        assert [len(rank[epoch]) for rank in got] == [steps] * world
        times = Counter(rows_of(epoch, got))
        if drop_last:
            assert all(len(batch) == source for rank in got for batch in rank[epoch])
            assert len(times) == min(samples // source, steps * world) * source
        else:
            assert set(times) == set(range(samples))


def test_padding_is_refused_where_nobody_knows_the_length(serve):
    serve([{"id": np.arange(i, i + 7)} for i in range(0, 98, 7)])
    with pytest.raises(penstock.BadSetting, match=r"does not know its length.*leave pad out"):
        penstock.attach("feed", 5, shard=(0, 2), pad=True)
    with pytest.raises(penstock.BadSetting, match="pad="):
        penstock.attach("feed", 5, shard=(0, 2), pad="yes")  # type: ignore[arg-type]


@drawn(size=st.integers(1, 130), world=st.integers(1, 4), borrow=st.booleans())
def test_ranks_share_each_epoch_out(serve, samples, source, segments, size, world, drop_last, borrow):
    try:
        steps = batches(samples, size, world, drop_last=drop_last)
    except penstock.BadSetting:
        assume(False)
        raise
    got = epochs_of_arrays(serve, samples, source, segments, size, world, drop_last=drop_last, borrow=borrow)
    for epoch in range(2):
        assert {len(rank[epoch]) for rank in got} == {steps}
        rows = rows_of(epoch, got)
        assert len({*rows}) == len(rows) == (steps * size * world if drop_last else samples)
        assert all(1 <= len(batch) <= size for rank in got for batch in rank[epoch])


def test_ranks_together_take_the_rows_that_one_trainer_would(serve):
    """Step by step: the rows of all ranks' batches are the next rows of the feed."""
    serve(penstock.ArraySource({"id": np.arange(100)}, batch_size=7, shuffle=False, segments=1))
    (whole,) = epochs_of_ranks("feed", 24, 1, epochs=1)
    ranks = epochs_of_ranks("feed", 8, 3, epochs=1)
    together = [[i for rank in ranks for i in rank[0][step]] for step in range(5)]
    assert [sorted(step) for step in together] == [sorted(batch) for batch in whole[0]]
    assert together[:4] == whole[0][:4]


@pytest.mark.parametrize(
    ("rows", "size", "world", "options", "batches"),
    [
        (100, 8, 3, {}, 5),
        (100, 8, 3, {"drop_last": True}, 4),
        (15, 4, 2, {"drop_last": True, "pad": True}, 2),  # torch's sampler gives each rank 8 rows
        (15, 1, 2, {"pad": True}, 8),
    ],
)
def test_the_length_is_that_of_each_rank(serve, rows, size, world, options, batches):
    serve({"id": np.arange(rows)})
    with penstock.attach("feed", size, shard=(0, world), **options) as loader:
        assert len(loader) == batches


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
    assert feeder.statistics().trainers[0].waits_for == "the other ranks"
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

    def train(i: int) -> list[int]:
        with loaders[i] as loader:
            return ids_of(loader)

    got = at_once(train, 4)
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
        assert sorted(rows_of(epoch, got)) == list(range(steps * 5 * world))


def test_what_cannot_be_dealt_evenly_is_refused_with_the_remedy(serve):
    serve({"id": np.arange(7)})
    with pytest.raises(penstock.BadSetting, match=r"7 samples cannot be split among 2 ranks .* 1 are left over"):
        penstock.attach("feed", 1, shard=(0, 2))
    with pytest.raises(penstock.BadSetting, match=r"drop_last=True"):
        penstock.attach("feed", 4, shard=(0, 9))
