"""The order of samples: seeded, segmented, and the same on every machine."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.contracts import NO_JOINTS, Cursor, Joints
from penstock.sources.order import Order, permutation


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
