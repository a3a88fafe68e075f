"""Trainers that are themselves data-parallel: equally many batches a rank, each sample once, one epoch for all."""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch.distributed
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.feed.reading import at_once, ids_of
from tests.forked import eventually
from torch.utils.data import DataLoader, DistributedSampler

import penstock
from penstock.contracts import Cursor
from penstock.feed.feeder.blocks import FeedMember, PublishedBlock
from penstock.feed.feeder.feed_state import FeedState
from penstock.memory.room import Room
from penstock.memory.slots import Placement
from penstock.sources.sharding import batches
from penstock.tree.layout import Constant

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
@example(samples=25, source=10, segments=2, world=2, drop_last=True)  # its short batch is past where it ends
@pytest.mark.usefixtures("stays")
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


@drawn(size=st.integers(1, 130), world=st.integers(1, 4), borrow=st.booleans())
def test_ranks_share_each_epoch_out(serve, samples, source, segments, size, world, drop_last, borrow):
    try:
        steps = batches(samples, size, world, drop_last=drop_last)
    except penstock.errors.BadSetting:
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

    def train(rank: int) -> int:
        with penstock.attach("feed", 10, shard=(rank, 2)) as loader:
            return len(ids_of(loader))

    with ThreadPoolExecutor(1) as threads, closing(feeder):
        first = threads.submit(train, 0)
        eventually(lambda: [trainer.state for trainer in feeder.statistics().trainers] == ["waiting"])
        assert feeder.statistics().trainers[0].waits_for == "the other ranks"
        assert not first.done()
        with pytest.raises(penstock.errors.Refused, match="rank 0 of 2 has joined already"):
            penstock.attach("feed", 10, shard=(0, 2))
        assert train(1) + first.result() == 100


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
    for options, says in (
        ({}, "pass drop_last=True"),
        ({"pad": True}, "does not know its length.*leave pad out"),
        ({"pad": "yes"}, "pad="),
    ):
        with pytest.raises(penstock.errors.BadSetting, match=says):
            penstock.attach("feed", 5, shard=(0, world), **options)
    got = epochs_of_ranks("feed", 5, world, drop_last=True)
    steps = 98 // (5 * world)
    for epoch in range(2):
        assert {len(rank[epoch]) for rank in got} == {steps}
        assert sorted(rows_of(epoch, got)) == list(range(steps * 5 * world))


def test_what_cannot_be_dealt_evenly_is_refused_with_the_remedy(serve):
    serve({"id": np.arange(7)})
    says = r"7 samples cannot be split among 2 ranks .* 1 are left over"
    for size, world, match in ((1, 2, says), (4, 9, "drop_last=True")):
        with pytest.raises(penstock.errors.BadSetting, match=match):
            penstock.attach("feed", size, shard=(0, world))


def state_of_two(epochs: int | None = None) -> FeedState:
    state = FeedState(Room(10_000), 100, (0, 50), epochs)
    for rank in (0, 1):
        state.join(FeedMember(rank, rank, 2, "a"))
    return state


def test_a_rank_that_was_told_by_a_feeder_that_died_takes_along_the_rank_that_was_not():
    """It died between its two answers: rank 0 goes on from the epoch's start, rank 1 knows of none."""
    for first in (0, 1):
        state = state_of_two()
        starts = {
            0: lambda r=state: r.start(0, Cursor(3, 50), 0, Cursor(3, 50)),
            1: lambda r=state: r.start(1, None, 0, Cursor(0, 0)),
        }
        begun = [member.id for id in (first, 1 - first) for member in starts[id]()]
        assert sorted(begun) == [0, 1]
        assert {member.next for member in state.members.values()} == {Cursor(3, 50)}


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_rank_begins_where_the_others_epoch_began_unless_that_is_a_later_one(epoch):
    state = state_of_two()
    state.start(0, Cursor(3, 80), epoch, Cursor(3, 50))
    begun = state.start(1, None, 0, Cursor(0, 0))
    assert [member.next for member in begun] == ([] if epoch else [Cursor(3, 50)])
    assert (state.members[1].state == "waiting") == bool(epoch)


def test_a_rank_that_was_sent_all_its_epochs_still_says_where_they_began():
    state = state_of_two(epochs=1)
    state.start(0, Cursor(0, 0), 0, Cursor(0, 0))
    offset = state.room.reserve(100)
    assert offset is not None
    state.publish(PublishedBlock(Cursor(0, 0), 100, offset, Placement(Constant(None), (), (), 100)))
    assert state.members[0].finished
    (member,) = state.start(1, None, 0, Cursor(0, 0))
    assert member.next == Cursor(0, 0)


def test_a_rank_that_is_there_twice_does_not_stand_for_another():
    """It was restarted, and its first connection is not heard to have ended yet."""
    state = state_of_two()
    state.join(FeedMember(2, 0, 2, "a"))
    assert state.start(0, None, 0, Cursor(0, 0)) == []
    assert state.start(2, None, 0, Cursor(0, 0)) == []
    assert [member.id for member in state.start(1, None, 0, Cursor(0, 0))] == [0, 1, 2]


def test_one_of_several_workers_that_names_no_shard_is_warned(serve, monkeypatch):
    """Each worker of a DataLoader that attaches by itself gets every sample."""
    serve(penstock.ArraySource(np.arange(100)))
    for workers in (1, 2):
        info = SimpleNamespace(id=1, num_workers=workers)
        monkeypatch.setattr("torch.utils.data.get_worker_info", lambda info=info: info)
        with penstock.attach("feed", 10) as loader, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            iter(loader)
        told = [str(each.message) for each in caught if "Pass shard=(1, 2)" in str(each.message)]
        assert len(told) == workers - 1


def test_one_of_several_ranks_that_names_no_shard_is_warned_and_one_that_does_is_not(serve, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    serve(penstock.ArraySource(np.arange(100)))
    with penstock.attach("feed", 10) as loader, pytest.warns(UserWarning, match=r"Pass shard=\(1, 2\)"):
        iter(loader)
    for shard in ((0, 1), (1, 2)):
        with penstock.attach("feed", 10, shard=shard) as loader, warnings.catch_warnings():
            warnings.simplefilter("error")
            iter(loader)
