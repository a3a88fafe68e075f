"""Digests of batches: what two processes take for the same samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.fingerprint.batch import STRUCTURE, difference, leaves_of, twice

ROWS = 4


def found(mine: Any, theirs: Any) -> tuple[str, int] | None:
    return difference(leaves_of(mine, ROWS), leaves_of(theirs, ROWS))


def arrays(dtype: str, width: int, seed: int) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(seed).normal(0, 100, (ROWS, width))
    return values.astype(dtype)


@given(
    st.sampled_from(["f2", "f4", "f8", "c8", "i8", "u1", "?"]),
    st.integers(1, 3000),
    st.integers(0, 99),
    st.integers(0, ROWS - 1),
    st.integers(0, 2999),
)
def test_equal_arrays_are_equal_and_one_item_that_differs_names_its_row(dtype, width, seed, row, item):
    mine, theirs = arrays(dtype, width, seed), arrays(dtype, width, seed)
    assert found({"x": mine}, {"x": theirs}) is None
    at = row, item % width
    theirs[at] = ~theirs[at] if dtype in "?u1" else theirs[at] + 1
    if not np.array_equal(mine, theirs):  # adding 1 to a large float16 may leave it
        assert found({"x": mine}, {"x": theirs}) == ("batch['x']", row)


@pytest.mark.parametrize("dtype", ["f4", "i8"])
def test_ragged_rows_differ_in_the_row_whose_items_or_length_do(dtype: str):
    def rows(*lengths: int, more: float = 0.0) -> Any:
        values = np.arange(sum(lengths)) // 9  # zeros at first, which change no sum
        values[-1] += more
        return {"x": penstock.RaggedRows(values.astype(dtype), np.cumsum([0, *lengths]))}

    mine = rows(2, 0, 3, 9)
    assert found(mine, rows(2, 0, 3, 9)) is None
    assert found(mine, rows(2, 0, 3, 9, more=1.0)) == ("batch['x']", 3)
    assert found(mine, rows(2, 1, 2, 9)) == ("batch['x']", 1)
    whole = [leaves_of(each, 5)[1] for each in (mine, rows(2, 0, 3, 9), rows(2, 1, 2, 9))]
    assert [len(leaf.rows) for leaf in whole] == [1, 1, 1], "of no row axis"
    assert whole[0].differs_at(whole[1]) is None
    assert whole[0].differs_at(whole[2]) == 0
    assert difference(
        leaves_of(mine, 4), leaves_of({"x": penstock.RaggedRows(**vars(mine["x"]) | {"give": "padded"})}, 4)
    )


@given(st.integers(1, 200_000), st.integers(0, 9))
def test_floats_within_a_millionth_are_equal(width: int, seed: int):
    mine = np.random.default_rng(seed).normal(size=(1, width))
    off = mine + np.random.default_rng(seed + 1).uniform(-1e-6, 1e-6, mine.shape)
    assert difference(leaves_of(mine, 1), leaves_of(off, 1)) is None


@pytest.mark.parametrize("classes", [2, 3, 10, 100, 1000])
def test_one_hot_labels_of_two_classes_are_never_taken_for_the_same(classes: int):
    labels = np.eye(classes, dtype=np.float32)[:100]
    rows = leaves_of(labels, len(labels))[1].rows
    assert not [(i, j) for i, mine in enumerate(rows) for j, other in enumerate(rows[:i]) if mine.equals(other)]


@pytest.mark.parametrize(
    "other", [(50, 10, 70, 40), (0, 40, 20, 10), (10, 0, 40, 20), (5, 15, 25, 45), (1, 9, 20, 40)]
)
def test_boxes_that_are_moved_or_turned_are_seen(other: tuple[float, ...]):
    boxes = np.array([[0, 10, 20, 40]] * ROWS, np.float32)
    moved = boxes.copy()
    moved[3] = other
    assert found({"box": boxes}, {"box": moved}) == ("batch['box']", 3)


@pytest.mark.parametrize("pixel", [(0, 0, 0), (1, 100, 100), (2, 223, 223)])
def test_one_grey_level_of_one_pixel_of_an_image_is_seen(pixel: tuple[int, int, int]):
    mine = torch.rand(ROWS, 3, 224, 224)
    theirs = mine.clone()
    theirs[2][pixel] += 1 / 255
    assert found((mine, torch.arange(ROWS)), (theirs, torch.arange(ROWS))) == ("batch[0]", 2)


def test_what_is_not_finite_is_compared_too():
    mine = np.array([[np.nan], [np.inf], [-np.inf], [0.0]])
    assert found(mine, mine.copy()) is None
    for row, value in enumerate([0.0, -np.inf, np.nan, np.inf]):
        theirs = mine.copy()
        theirs[row] = value
        assert found(mine, theirs) == ("batch", row)


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        (["a", "b", "c", "d"], ["a", "b", "x", "d"], ("batch", 2)),
        ([torch.zeros(ROWS), torch.zeros(3)], [torch.zeros(ROWS), torch.ones(3)], ("batch[1]", 0)),
        (torch.zeros(ROWS), torch.zeros(ROWS, dtype=torch.float64), (STRUCTURE, 0)),
        ({"x": torch.zeros(ROWS)}, {"y": torch.zeros(ROWS)}, (STRUCTURE, 0)),
        ({"x": torch.zeros(ROWS), "n": 1}, {"x": torch.zeros(ROWS), "n": 2}, (STRUCTURE, 0)),
        (torch.zeros(ROWS, dtype=torch.bfloat16), torch.ones(ROWS, dtype=torch.bfloat16), ("batch", 0)),
    ],
)
def test_any_leaf_is_compared(mine: Any, theirs: Any, expected: tuple[str, int]):
    assert found(mine, mine) is None
    assert found(mine, theirs) == expected


def test_a_leaf_that_does_not_come_out_alike_twice_is_not_compared_and_the_others_are():
    def batch(noise: int, label: int) -> Any:
        return {"image": np.random.default_rng(noise).random((ROWS, 9)), "label": np.full(ROWS, label)}

    mine = twice(leaves_of(batch(1, 0), ROWS), leaves_of(batch(2, 0), ROWS))
    for theirs, expected in ((batch(3, 0), None), (batch(3, 1), ("batch['label']", 0))):
        once = leaves_of(theirs, ROWS)
        assert difference(mine, twice(once, once)) == expected
        assert difference(twice(once, once), mine) == expected
