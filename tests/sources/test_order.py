"""The order of samples: seeded, segmented, the same on every machine; and its digest, which tells orders apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.forked import Forked
from tests.sources.drawing import Drawing, DrawingStream, owned
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import penstock
from penstock.contracts import NO_JOINTS, Cursor, Joints
from penstock.sources.adapt import adapt
from penstock.sources.order import Order, permutation
from penstock.sources.packed.packing import pack


def indices(order: Order, cycle: int, sample: int = 0, joints: Joints = NO_JOINTS) -> list[int]:
    return [int(i) for _, block in order.blocks(Cursor(cycle, sample), joints) for i in block]


def in_text(text: str) -> list[int]:
    return list(map(int, text.split()))


def test_a_permutation_is_what_it_was_on_every_machine():
    assert permutation(10, 0).tolist() == [3, 2, 1, 8, 6, 0, 7, 4, 5, 9]
    assert permutation(10, 2**64 - 1, 1, 3, 5).tolist() == [4, 8, 5, 3, 0, 2, 9, 6, 7, 1]
    assert int((permutation(100_000, 42, 1, 7, 3) * np.arange(100_000) % 1_000_003).sum()) == 49837443526


def test_the_order_of_a_feed_is_what_it_was_on_every_machine():
    order = Order(24, 4, None, 7, shuffle=True)
    assert indices(order, 0) == in_text("14 19 23 20 21 8 9 4 10 0 2 16 3 5 12 1 17 13 7 6 15 18 22 11")
    assert indices(order, 1) == in_text("13 10 8 21 11 17 5 22 4 7 14 3 23 18 12 2 6 9 16 0 20 15 19 1")
    joints = Joints(((1, (8, 16)),))
    assert indices(order, 1, joints=joints) == in_text(
        "8 21 4 14 23 9 20 19 10 5 3 12 2 16 0 1 13 11 17 22 7 18 6 15"
    )


def test_a_cycle_keeps_together_what_joints_have_cut_the_one_before_into():
    order = Order(100, 10, None, 7, shuffle=True)
    joints = Joints(((2, (30,)), (3, (30, 70)), (4, ())))
    cycles = [indices(order, cycle, joints=joints) for cycle in range(5)]
    plain = [indices(order, cycle) for cycle in range(5)]
    assert cycles[:2] == plain[:2] and cycles[4] == plain[4]
    assert set(cycles[2][:30]) == set(cycles[1][:30]) and cycles[2] != plain[2]
    for first, last in ((0, 30), (30, 70), (70, 100)):
        part = set(cycles[2][first:last])
        assert cycles[3][first:last] == [id for id in plain[3] if id in part], "in the loader's own order"


@given(n=st.integers(0, 300), words=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4))
def test_a_permutation_has_every_number_once_and_depends_on_its_words_alone(n, words):
    first = permutation(n, *words)
    assert sorted(first) == list(range(n))
    assert first.dtype == np.int64
    assert (permutation(n, *words) == first).all()


@given(
    samples=st.integers(1, 200),
    batch_size=st.integers(1, 60),
    segments=st.integers(1, 40),
    seed=st.integers(-(2**70), 2**70),
    shuffle=st.booleans(),
    cycles=st.tuples(st.integers(0, 50), st.integers(0, 50)),
)
def test_any_order_is_whole_blocks_of_fixed_segments(samples, batch_size, segments, seed, shuffle, cycles):
    order = Order(samples, batch_size, segments, seed, shuffle=shuffle)
    starts = order.segment_starts
    assert starts[0] == 0
    assert len(starts) == len(set(starts)) == min(segments, order.batches)
    assert all(start % batch_size == 0 for start in starts)
    members = []
    for cycle in cycles:
        blocks = list(order.blocks(Cursor(cycle, 0)))
        flat = [int(i) for _, block in blocks for i in block]
        assert sorted(flat) == list(range(samples))
        assert [start for start, _ in blocks] == list(range(0, order.samples, batch_size))
        assert order.samples == samples
        assert all(len(block) == batch_size for _, block in blocks[:-1])
        assert shuffle or flat == list(range(order.samples))
        stops = [*starts[1:], order.samples]
        members.append([set(flat[a:b]) for a, b in zip(starts, stops, strict=True)])
    assert members[0] == members[1]


@given(
    samples=st.integers(1, 120),
    batch_size=st.integers(1, 30),
    segments=st.integers(1, 9),
    sample=st.integers(0, 119),
)
def test_an_order_opens_at_the_block_that_holds_a_position(samples, batch_size, segments, sample):
    order = Order(samples, batch_size, segments, 1, shuffle=True)
    sample %= order.samples
    begins = sample // batch_size * batch_size
    assert indices(order, 3, sample) == indices(order, 3)[begins:]


def test_cycles_and_seeds_differ():
    orders = [
        tuple(indices(Order(100, 10, 4, seed, shuffle=True), cycle)) for seed in (0, 1) for cycle in (0, 1, 2)
    ]
    assert len(set(orders)) == len(orders)


ROWS = {"id": np.arange(60)}
DATA = Drawing(60)


class Strided(Sampler[int]):
    def __init__(self, stride: int, path: str = "/here/indices", words: tuple[str, ...] = ("a", "b")) -> None:
        self.stride = stride
        self.path = path
        self.words = set(words)

    def __len__(self) -> int:
        return 60

    def __iter__(self) -> Any:
        return iter([i * self.stride % 60 for i in range(60)])


class Backwards(Strided):
    def __iter__(self) -> Any:
        return iter(list(super().__iter__())[::-1])


def of(thing: Any, *, segments: int = 4, seed: int = 0) -> str:
    order = adapt(thing, segments=segments, seed=seed).order  # type: ignore[attr-defined]
    assert order
    return order


ORDERS: dict[str, Callable[[], list[str]]] = {
    "arrays": lambda: [
        of(penstock.ArraySource(ROWS, batch_size=6)),
        of(penstock.ArraySource(ROWS, batch_size=6, seed=7)),
        of(penstock.ArraySource(ROWS, batch_size=6, shuffle=False)),
        of(penstock.ArraySource(ROWS, batch_size=7)),
        of(penstock.ArraySource(ROWS, batch_size=6, segments=2)),
        of(penstock.ArraySource({"id": np.arange(61)}, batch_size=6)),
    ],
    "map-style": lambda: [
        of(DataLoader(DATA, 6, shuffle=True)),
        of(DataLoader(DATA, 6, shuffle=True), seed=1),
        of(DataLoader(DATA, 6)),
        of(DataLoader(DATA, 7, shuffle=True)),
        of(DataLoader(DATA, 6, shuffle=True), segments=3),
        of(DataLoader(DATA, 6, shuffle=True), segments=1),
        of(DataLoader(DATA, 6, shuffle=True), segments=1, seed=1),
        of(DataLoader(DATA, 6, shuffle=True, generator=owned()), segments=1),
        of(DataLoader(DATA, 6, shuffle=True, generator=owned(78)), segments=1),
        of(DataLoader(DATA, 6), segments=1),
        of(DataLoader(Drawing(61), 6, shuffle=True)),
    ],
    "samplers": lambda: [
        of(DataLoader(DATA, 6, sampler=SubsetRandomSampler(range(60)))),
        of(DataLoader(DATA, 6, sampler=SubsetRandomSampler(range(60))), seed=1),
        of(DataLoader(DATA, 7, sampler=SubsetRandomSampler(range(60)))),
        of(DataLoader(DATA, 6, sampler=SubsetRandomSampler(range(1, 60)))),
        of(DataLoader(DATA, 6, sampler=SubsetRandomSampler(range(60), owned()))),
        of(DataLoader(DATA, 6, sampler=SubsetRandomSampler(range(60), owned(78)))),
        of(DataLoader(DATA, 6, sampler=RandomSampler(DATA, replacement=True))),
        of(DataLoader(DATA, 6, sampler=RandomSampler(DATA, num_samples=70))),
        of(DataLoader(DATA, 6, sampler=WeightedRandomSampler([1.0] * 60, 60))),
        of(DataLoader(DATA, 6, sampler=WeightedRandomSampler([1.0] * 59 + [1.5], 60))),
        of(DataLoader(DATA, 6, sampler=WeightedRandomSampler([1.0] * 60, 60, replacement=False))),
        of(DataLoader(DATA, 6, sampler=Strided(7))),
        of(DataLoader(DATA, 6, sampler=Strided(11))),
        of(DataLoader(DATA, 6, sampler=Backwards(7))),
        of(DataLoader(DATA, batch_sampler=BatchSampler(Strided(7), 6, False))),
        of(DataLoader(DATA, batch_sampler=BatchSampler(Strided(7), 7, True))),
    ],
    "streams": lambda: [
        of(DataLoader(DrawingStream(60), 6)),
        of(DataLoader(DrawingStream(60), 6), seed=1),
        of(DataLoader(DrawingStream(60), 7)),
        of(DataLoader(DrawingStream(60), 7, drop_last=True)),
        of(DataLoader(DrawingStream(60), 6, num_workers=2)),
        of(DataLoader(DrawingStream(60), 6, generator=owned())),
        of([ROWS] * 3),
        of([ROWS] * 4),
        of([ROWS] * 3, seed=1),
    ],
}
BOTH = (False, True)
SAME: dict[str, Callable[[], list[str]]] = {
    "arrays": lambda: [
        of(penstock.ArraySource(ROWS, batch_size=6)),
        of(penstock.ArraySource({"other": np.zeros((60, 3))}, batch_size=6), seed=9, segments=2),
    ],
    "left out": lambda: [
        of(penstock.ArraySource(ROWS, batch_size=7, drop_last=drop), segments=1) for drop in BOTH
    ],
    "left out by a loader": lambda: [
        of(DataLoader(DATA, 7, shuffle=True, drop_last=drop), segments=1) for drop in BOTH
    ],
    "left out by a loader with a sampler": lambda: [
        of(DataLoader(DATA, 7, sampler=SubsetRandomSampler(range(60)), drop_last=drop)) for drop in BOTH
    ],
    "in order": lambda: [of(DataLoader(DATA, 6)), of(DataLoader(DATA, 6), seed=1)],
    "map-style": lambda: [
        of(DataLoader(DATA, 6, shuffle=True)),
        of(DataLoader(TensorDataset(torch.arange(60)), 6, shuffle=True, num_workers=2, collate_fn=list)),
    ],
    "one segment": lambda: [
        of(DataLoader(DATA, 6, shuffle=True, num_workers=workers, generator=owned()), segments=1)
        for workers in (0, 2)
    ],
    "sampler": lambda: [
        of(DataLoader(DATA, 6, sampler=Strided(7))),
        of(DataLoader(DATA, 6, sampler=Strided(7, path="/there/indices"), num_workers=2)),
    ],
    "weights": lambda: [
        of(DataLoader(data, 6, sampler=WeightedRandomSampler(torch.ones(60), 60)))
        for data in (DATA, TensorDataset(torch.arange(60)))
    ],
}


@pytest.mark.parametrize("kind", ORDERS)
def test_what_changes_the_order_changes_the_digest(kind):
    digests = ORDERS[kind]()
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("kind", SAME)
def test_what_does_not_change_the_order_leaves_the_digest(kind):
    assert len(set(SAME[kind]())) == 1


def test_a_packed_data_set_has_one_wherever_it_lies(tmp_path):
    orders: list[str] = []
    for folder, seed in (("one", 0), ("two", 0), ("three", 1)):
        pack([ROWS], tmp_path / folder)
        orders.append(penstock.PackedSource(tmp_path / folder, batch_size=6, seed=seed, reader="posix").order)
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.whole
def test_two_processes_give_one_digest(servers, tmp_path):
    """Neither addresses nor the salt of Python's hashes, which change from process to process, are in it."""
    here = [digest for kind in ORDERS for digest in ORDERS[kind]()]
    script = tmp_path / "script.py"
    script.write_text(
        "from tests.sources.test_order import ORDERS\nprint(*(d for k in ORDERS for d in ORDERS[k]()))"
    )
    there = Forked(servers["torch"], str(script), [], tmp_path / "out")  # from a process that has another salt
    assert there.wait() == 0, there.output
    assert there.output.split() == here
