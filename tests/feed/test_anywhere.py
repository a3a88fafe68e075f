"""Samplers that draw with replacement, or hardly end: an epoch is as many draws, from any block on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler, WeightedRandomSampler

import penstock
from penstock.contracts import Cursor
from penstock.sources.torch.loader import adapt_loader

pytestmark = pytest.mark.usefixtures("stays")
N = 30
NUMBERS: Any = torch.arange(N)
BLOCK = 4


class HugeBatches(Sampler[list[int]]):
    """Batches of many sizes, in a random order, which the sampler says to be very many."""

    def __len__(self) -> int:
        return 10**8

    def __iter__(self) -> Iterator[list[int]]:
        for i in range(10**8):
            yield [(7 * i + k) % N for k in range(1 + i % 3)]


class Infinite(Sampler[Any]):
    """Never ends, but says how long an epoch is, as mmengine's ``InfiniteSampler``: indices, or lists of them."""

    def __init__(self, size: int | None = None) -> None:
        self.size = size

    def __len__(self) -> int:
        return N if self.size is None else N // self.size

    def __iter__(self) -> Iterator[Any]:
        for i in itertools.count():
            yield 7 * i % N if self.size is None else [(7 * i + k) % N for k in range(self.size)]


def drawn(draws: int) -> DataLoader[int]:
    return DataLoader(NUMBERS, BLOCK, sampler=RandomSampler(NUMBERS, replacement=True, num_samples=draws))


def weighted() -> DataLoader[int]:
    return DataLoader(NUMBERS, BLOCK, sampler=WeightedRandomSampler([1.0, 9.0] * (N // 2), N))


def order_of(loader: DataLoader[int], rows: int) -> list[int]:
    """What a feed gives of a loader, from its beginning on."""
    source, found = adapt_loader(loader, segments=None, seed=0), []
    for cycle in itertools.count():
        for block in source.open(Cursor(cycle, 0)):
            found += block.tree.tolist()
            if len(found) >= rows:
                return found[:rows]
    raise AssertionError


def ids(batches: Any) -> list[int]:
    return [int(i) for batch in batches for i in batch]


def where(part: list[int], order: list[int]) -> int:
    """Where some draws stand in an order, which has them once."""
    (start,) = [i for i in range(len(order)) if order[i : i + len(part)] == part]
    return start


def test_a_late_trainer_of_a_sampler_without_end_begins_at_the_next_block(serve):
    order = order_of(drawn(10**10), 2000)
    serve(drawn(10**10), window="4KiB")
    with penstock.attach("feed", 6) as late:
        with penstock.attach("feed", 5) as early:
            assert len(early) == 2 * 10**9
            assert ids(itertools.islice(early, 60)) == order[:300]
            joined = ids(itertools.islice(late, 5))
        start = where(joined, order)
        assert start % BLOCK == 0 and 0 < start <= 300
        again = ids(itertools.islice(late, 40))  # a broken off loop gives its epoch up, and no draw comes again
        assert where(again, order) >= start + 30


def test_an_epoch_is_as_many_draws_as_the_sampler_has_from_wherever_a_trainer_joins(serve):
    order = order_of(weighted(), 12 * N)
    serve(weighted(), window=512, prefetch=1)
    with penstock.attach("feed", 5) as early, penstock.attach("feed", 7) as late:
        batches = iter(early)
        read = ids(itertools.islice(batches, 3))
        assert [len(batch) for batch in late] == [7, 7, 7, 7, 2]
        assert read + ids(batches) + ids(early) == order[: 2 * N]


def test_epochs_follow_one_another_without_a_gap(serve):
    order = order_of(weighted(), 14 * N)
    serve(weighted(), window=512, prefetch=1)
    with penstock.attach("feed", 7) as early:
        ids(itertools.islice(early, 2))
        with penstock.attach("feed", 7) as late:
            late_ids = ids(late)
            early.close()
            for _ in range(5):
                late_ids += ids(late)
    start = where(late_ids, order)
    assert len(late_ids) == 6 * N and 0 < start % N and start % BLOCK in (0, N % BLOCK)


@pytest.mark.parametrize("restart", [False, True])
def test_a_state_from_the_middle_of_such_an_epoch_goes_on_exactly(serve, restart):
    feeder = serve(weighted(), window=512, prefetch=1)
    with penstock.attach("feed", 5) as early:
        ids(itertools.islice(early, 3))
        with penstock.attach("feed", 7) as late:
            batches = iter(late)
            ids(itertools.islice(batches, 2))
            state = late.state_dict()
            assert state["start"][1] > 0
            early.close()
            rest, following = ids(batches), ids(late)
    if restart:
        feeder.close()
        serve(weighted(), window="4KiB")
    with penstock.attach("feed", 7) as resumed:
        resumed.load_state_dict(state)
        assert ids(resumed) == rest
        assert ids(resumed) == following


def test_ranks_join_such_a_feed_together_at_one_block(serve):
    order = order_of(drawn(10**10), 2000)
    serve(drawn(10**10), window="4KiB")
    with penstock.attach("feed", 5) as early:
        ids(itertools.islice(early, 40))

        def read(rank: int) -> list[list[int]]:
            with penstock.attach("feed", 3, shard=(rank, 2)) as loader:
                return [batch.tolist() for _ in range(2) for batch in itertools.islice(loader, 5)]

        with ThreadPoolExecutor(2) as ranks:
            reading = ranks.map(read, range(2))
            early.close()  # else the window would hold what it has not read
            got = [*reading]
    for epoch in (slice(0, 5), slice(5, 10)):
        together = [i for pair in zip(got[0][epoch], got[1][epoch], strict=True) for batch in pair for i in batch]
        assert where(together, order) > 0


@pytest.mark.parametrize("kind", ["batch sampler", "whole batches"])
def test_batches_that_a_sampler_gives_almost_without_end_are_joined_at_once(serve, kind):
    if kind == "batch sampler":
        serve(DataLoader(NUMBERS, batch_sampler=HugeBatches()), window="4KiB", whole_batches=True)
    else:
        pairs: Any = [[i, i + 1] for i in range(N)]
        serve(DataLoader(pairs, batch_size=None, sampler=RandomSampler(pairs, True, 10**9)), window="4KiB")
    with penstock.attach("feed") as early, penstock.attach("feed") as late:
        assert early.anywhere
        read = [list(map(int, batch)) for batch in itertools.islice(early, 100)]
        joined = [list(map(int, batch)) for batch in itertools.islice(late, 3)]
        assert len(read) == 100 and len(joined) == 3


@pytest.mark.parametrize(
    "loader",
    [
        lambda: DataLoader(NUMBERS, BLOCK, sampler=Infinite()),
        lambda: DataLoader(NUMBERS, batch_sampler=Infinite(5)),
        lambda: DataLoader(NUMBERS, batch_size=None, sampler=Infinite(2)),
    ],
    ids=["sampler", "batch sampler", "whole batches"],
)
def test_a_sampler_that_never_ends_is_joined_at_once_whatever_it_says_of_its_length(serve, loader):
    serve(loader(), window="4KiB", whole_batches=True)
    alone = [torch.as_tensor(batch).tolist() for batch in itertools.islice(loader(), 40)]
    with penstock.attach("feed") as early, penstock.attach("feed") as late:
        read = [torch.as_tensor(batch).tolist() for batch in itertools.islice(early, 40)]
        assert read == alone
        assert len([*itertools.islice(late, 3)]) == 3


def test_a_sampler_that_gives_each_sample_once_is_joined_where_it_begins(serve):
    serve(DataLoader(NUMBERS, BLOCK, sampler=RandomSampler(NUMBERS, num_samples=N // 2)), window="4KiB")
    with penstock.attach("feed") as loader:
        assert not loader.anywhere
        assert len(set(ids(loader))) == N // 2


class Shuffled(Sampler[int]):
    """Gives each sample once, in an order of its own each time."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(N).tolist())


class Stream(IterableDataset[int]):
    """Does not say how long it is."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(N).tolist())


@pytest.mark.parametrize(
    "data",
    [lambda: DataLoader(NUMBERS, BLOCK, sampler=Shuffled()), lambda: DataLoader(Stream(), BLOCK)],
    ids=["sampler", "stream"],
)
def test_who_comes_late_begins_with_a_cycle_of_unknown_length_though_that_has_ended(serve, stays, data):
    stays(20)
    feeder = serve(data(), window="1MiB")
    with penstock.attach("feed") as early, penstock.attach("feed") as late:
        first, second = ids(early), ids(early)
        assert sorted(first) == sorted(second) == [*range(N)] and first != second
        assert [ids(late), ids(late), ids(late)] == [first, second, ids(early)]
        assert feeder.statistics().reopened == 0, "each cycle was made once"
