"""Epochs as pure values: however rows are dealt to ranks, left out, saved and loaded, each comes once."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

import penstock
from penstock.contracts import Cursor
from penstock.feed.trainer.batch_builder import filled
from penstock.feed.trainer.epoch import Epoch, EpochRules
from penstock.sources.sharding import batches, drawn, next_slice

SAMPLES, SIZES, WORLDS = st.integers(1, 400), st.integers(1, 50), st.integers(1, 9)
NONE_OR_SOME = st.integers(0, 400)


def rules(samples: int | None, size: int, rank: int = 0, world: int = 1, **changes: Any) -> EpochRules:
    settings = {"drop_last": True, "segment_starts": (0, samples and samples // 2), "seed": 3, **changes}
    return EpochRules(samples, size, rank, world, **settings)


def rest_of(of: EpochRules, epoch: Epoch) -> list[list[int]]:
    """The rows of each batch that is left of an epoch."""
    found: list[list[int]] = []
    while (dealt := of.next(epoch)) is not None:
        found.append([row for start, stop in dealt.runs for row in range(start, stop)])
        assert dealt.rows == len(found[-1])
        epoch = dealt.after
    return found


@given(SAMPLES, SIZES, WORLDS, st.integers(0, 5), st.booleans())
def test_with_drop_last_every_batch_is_full_and_ranks_leave_the_same_rows_out(samples, size, world, number, one):
    starts = (0,) if one else (0, samples // 2)
    ranks = []
    for rank in range(world):
        of = rules(samples, size, rank, world, segment_starts=starts)
        ranks.append(rest_of(of, of.begin(number, Cursor(0, 0))))
    assert {len(of_rank) for of_rank in ranks} == {batches(samples, size, world, drop_last=True)}
    rows = sorted(row for of_rank in ranks for batch in of_rank for row in batch)
    left_out = samples % (size * world)
    assert len(set(rows)) == len(rows) == samples - left_out
    assert all(len(batch) == size for of_rank in ranks for batch in of_rank)
    if one:
        assert rows == list(range(samples - left_out)), "as torch does: the last ones"


@given(SAMPLES, SIZES, WORLDS)
def test_without_drop_last_every_row_comes_once(samples, size, world):
    assume(world == 1 or (samples >= world and (size > 1 or samples % world == 0)))
    every = [rules(samples, size, rank, world, drop_last=False) for rank in range(world)]
    rows = [row for of in every for batch in rest_of(of, of.begin(0, Cursor(0, 0))) for row in batch]
    assert sorted(rows) == list(range(samples))


@given(SAMPLES, SIZES, WORLDS, st.integers(0, 5), st.booleans(), st.booleans(), st.integers(0, 9))
def test_padded_ranks_take_equal_steps_also_when_they_are_resumed(samples, size, world, number, drop, one, taken):
    starts = (0,) if one else (0, samples // 2)
    steps = batches(samples, size, world, drop_last=drop, pad=True)
    given_out: list[list[list[int]]] = []
    for rank in range(world):
        of = rules(samples, size, rank, world, segment_starts=starts, drop_last=drop, pad=True)
        epoch = of.begin(number, Cursor(0, 0))
        whole = rest_of(of, epoch)
        for _ in range(min(taken, steps)):
            dealt = of.next(epoch)
            assert dealt is not None
            epoch = dealt.after
        loaded = of.loaded(json.loads(json.dumps(of.saved(epoch))))
        if loaded.number == number:
            assert rest_of(of, loaded) == whole[taken:]
        else:
            assert taken >= steps
        given_out.append(whole)
    assert {len(of_rank) for of_rank in given_out} == {steps}
    assert all(len({len(batch) for batch in step}) == 1 for step in zip(*given_out, strict=True))
    times = Counter(row for of_rank in given_out for batch in of_rank for row in batch)
    if drop:
        assert all(len(batch) == size for of_rank in given_out for batch in of_rank)
        assert len(times) == min(samples, steps * size * world)
    else:
        assert set(times) == set(range(samples))
        assert sum(times.values()) == -(-samples // world) * world


def test_every_sample_is_missed_about_equally_often():
    """1,000 samples in batches of 64, 1,000 epochs: 40 are left out of each."""
    of = rules(1000, 64)
    missed: Counter[int] = Counter()
    for number in range(1000):
        given_out = {row for batch in rest_of(of, of.begin(number, Cursor(0, 0))) for row in batch}
        assert len(given_out) == 960
        missed.update(set(range(1000)) - given_out)
    assert len(missed) == 1000
    assert max(missed.values()) < 40 + 6 * 40**0.5, "of 40 times that are expected, six standard deviations"


@given(SAMPLES, SIZES, SIZES, st.integers(0, 10), st.booleans(), st.booleans(), st.booleans())
def test_a_place_that_is_saved_and_loaded_brings_back_the_rest(samples, size, other, taken, drop, drop_then, one):
    starts = (0,) if one else (0, samples // 2)
    of = rules(samples, size, drop_last=drop, segment_starts=starts)
    epoch = of.begin(4, Cursor(2, 0))
    before: list[int] = []
    for _ in range(taken):
        if (dealt := of.next(epoch)) is None:
            break
        before += [row for start, stop in dealt.runs for row in range(start, stop)]
        epoch = dealt.after
    state = json.loads(json.dumps(of.saved(epoch)))
    assert of.loaded(state) == (
        of.following(epoch)
        if of.is_over(epoch)
        else epoch._replace(left_out=tuple(row for row in epoch.left_out if row >= epoch.passed))
    )
    then = rules(samples, other, drop_last=drop_then, segment_starts=starts)
    loaded = then.loaded(state)
    if loaded.number > 4:
        return
    rows = [row for batch in rest_of(then, loaded) for row in batch]
    assert not set(rows) & set(before)
    missing = set(range(loaded.passed, samples)) - set(rows)
    assert len(missing) < other + size
    if not drop_then:
        assert not missing
    if drop_then:
        assert all(len(batch) == other for batch in rest_of(then, loaded))


def test_a_rest_that_cannot_be_dealt_to_more_ranks_is_refused():
    """As it was found: the last three of 100 rows never came."""
    state = rules(100, 97, drop_last=False).saved(Epoch(0, Cursor(0, 0), 97))
    with pytest.raises(penstock.errors.BadSetting, match="3 samples cannot be split among 4 ranks"):
        rules(100, 5, 0, 4, drop_last=False).loaded(state)
    assert rules(100, 5, 0, 3, drop_last=False).loaded(state).passed == 97


NONSENSE: dict[str, list[Any]] = {
    "delivered": [101, -1, 3.0, True, "5"],
    "epoch": [-1, None],
    "start": [[0, 100], [0], [0, -1], "00", None],
    "left_out": [None, [50, 40], [40, 40], [100], ["a"]],
}


@pytest.mark.parametrize(("part", "value"), [(part, value) for part in NONSENSE for value in NONSENSE[part]])
def test_a_state_that_makes_no_sense_is_refused_by_name(part, value):
    of = rules(100, 10)
    state = {"epoch": 1, "start": [0, 0], "delivered": 30, "left_out": []}
    assert of.loaded(state) == Epoch(1, Cursor(0, 0), 30)
    with pytest.raises(penstock.errors.BadSetting, match=part):
        of.loaded({**state, part: value})


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
    except penstock.errors.BadSetting:
        return False
    return True


@given(NONE_OR_SOME, SIZES, WORLDS)
def test_every_row_goes_to_one_rank_in_equally_many_batches_that_differ_by_one_row_at_most(samples, size, world):
    assume(possible(samples, size, world))
    ranks = [dealt(samples, size, rank, world) for rank in range(world)]
    assert {len(of_rank) for of_rank in ranks} == {batches(samples, size, world, drop_last=False)}
    assert sorted(row for of_rank in ranks for batch in of_rank for row in batch) == list(range(samples))
    assert all(1 <= len(batch) <= size for of_rank in ranks for batch in of_rank)
    assert all(max(map(len, step)) - min(map(len, step)) <= 1 for step in zip(*ranks, strict=True))


@given(NONE_OR_SOME, SIZES, st.integers(2, 9))
def test_only_what_no_deal_can_solve_is_refused(samples, size, world):
    """Too few rows for a row a rank; or batches of one row, and a number that ranks do not divide."""
    solvable = samples >= world and (size > 1 or samples % world == 0)
    assert possible(samples, size, world) == solvable


@given(SAMPLES, SIZES, WORLDS)
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


@given(SAMPLES, SIZES, WORLDS)
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


@given(NONE_OR_SOME, SIZES)
def test_alone_a_trainer_gets_what_a_data_loader_gives(samples, size):
    cut = [range(start, min(start + size, samples)) for start in range(0, samples, size)]
    assert dealt(samples, size, 0, 1) == cut


@given(st.integers(0, 60), st.integers(0, 10**9), st.integers(0, 500))
def test_drawn_positions_are_different_and_lie_in_their_range(count, start, more):
    positions = drawn(count, start, start + count + more, 1, 2)
    assert len(set(positions)) == count
    assert list(positions) == sorted(positions)
    assert all(start <= position < start + count + more for position in positions)
