"""However an epoch's rows are dealt to ranks: equally many batches, every row once, none too large."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

import penstock
from penstock.feed.trainer.batch_builder import filled
from penstock.sources.sharding import batches, drawn, next_slice

SAMPLES, SIZES, WORLDS = st.integers(0, 400), st.integers(1, 50), st.integers(1, 9)


def dealt(samples: int, size: int, rank: int, world: int, **options: bool) -> list[range]:
    """The rows of each batch of a rank."""
    found: list[range] = []
    done = 0
    while (share := next_slice(samples - done, size, rank, world, **options)) is not None:
        assert share.taken > 0
        found.append(range(done + share.start, done + share.stop))
        done += share.taken
    return found


def possible(samples: int, size: int, world: int) -> bool:
    try:
        batches(samples, size, world, drop_last=False)
    except penstock.BadSetting:
        return False
    return True


@given(SAMPLES, SIZES, WORLDS)
def test_every_row_goes_to_one_rank_in_equally_many_batches_that_differ_by_one_row_at_most(samples, size, world):
    assume(possible(samples, size, world))
    ranks = [dealt(samples, size, rank, world) for rank in range(world)]
    assert {len(of_rank) for of_rank in ranks} == {batches(samples, size, world, drop_last=False)}
    assert sorted(row for of_rank in ranks for batch in of_rank for row in batch) == list(range(samples))
    assert all(1 <= len(batch) <= size for of_rank in ranks for batch in of_rank)
    assert all(max(map(len, step)) - min(map(len, step)) <= 1 for step in zip(*ranks, strict=True))


@given(SAMPLES, SIZES, st.integers(2, 9))
def test_only_what_no_deal_can_solve_is_refused(samples, size, world):
    """Too few rows for a row a rank; or batches of one row, and a number that ranks do not divide."""
    solvable = samples >= world and (size > 1 or samples % world == 0)
    assert possible(samples, size, world) == solvable


@given(st.integers(1, 400), SIZES, WORLDS)
def test_padded_ranks_get_batches_of_torchs_sizes_and_together_every_row(samples, size, world):
    rows: Any = range(samples)
    torchs = partial(DataLoader, rows, size, sampler=DistributedSampler(rows, world, 0), collate_fn=len)
    for drop_last in (False, True):
        assert batches(samples, size, world, drop_last=drop_last, pad=True) == len(torchs(drop_last=drop_last))
    ranks = [dealt(samples, size, rank, world, pad=True) for rank in range(world)]
    assert [[len(batch) for batch in of_rank] for of_rank in ranks] == [list(torchs())] * world
    times = Counter(row for of_rank in ranks for batch in of_rank for row in batch)
    assert set(times) == set(rows)
    again = sum(times.values()) - samples
    assert again == -samples % world
    whole_steps = samples // (size * world) * size * world
    assert all(times[row] == 1 for row in range(whole_steps)), "only rows of the last step repeat"
    if again:
        assert max(times.values()) <= 2 + -(-again // (samples - whole_steps)), "about equally often"


@given(st.integers(1, 400), SIZES, WORLDS)
def test_full_batches_of_padded_ranks_are_as_many_and_hold_every_row(samples, size, world):
    ranks = [dealt(samples, size, rank, world, pad=True, full=True) for rank in range(world)]
    assert {len(of_rank) for of_rank in ranks} == {batches(samples, size, world, drop_last=False, pad=True)}
    *whole, last = [len(batch) for batch in ranks[0]]
    assert set(whole) <= {size} and last == min(size, samples - len(whole) * size * world)
    assert all([*map(len, of_rank)] == [*whole, last] for of_rank in ranks)
    assert {row for of_rank in ranks for batch in of_rank for row in batch} == set(range(samples))


def test_a_batch_is_filled_with_its_first_rows_again():
    tree = {"x": torch.arange(6).reshape(3, 2), "y": np.arange(3), "name": ["a", "b", "c"], "same": None}
    full = filled(tree, 8)
    assert full["x"].tolist() == [tree["x"][i % 3].tolist() for i in range(8)]
    assert full["y"].tolist() == [0, 1, 2, 0, 1, 2, 0, 1] and full["name"] == [*"abcabcab"]
    assert filled(tree, 3) is tree


@given(SAMPLES, SIZES)
def test_alone_a_trainer_gets_what_a_data_loader_gives(samples, size):
    cut = [range(start, min(start + size, samples)) for start in range(0, samples, size)]
    assert dealt(samples, size, 0, 1) == cut


@given(st.integers(0, 60), st.integers(0, 10**9), st.integers(0, 500))
def test_drawn_positions_are_different_and_lie_in_their_range(count, start, more):
    positions = drawn(count, start, start + count + more, 1, 2)
    assert len(set(positions)) == count
    assert list(positions) == sorted(positions)
    assert all(start <= position < start + count + more for position in positions)
