"""How many rows a batch has, without asking more of a loader than it has said."""

from __future__ import annotations

import math
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from penstock.runs.inside.watch import first_axis, rows_of


class Shaped:
    """Something of a batch's own shape.

    Args:
        shape: What it says, or the exception that it raises.
    """

    def __init__(self, shape: Any) -> None:
        self._shape = shape

    @property
    def shape(self) -> Any:
        if isinstance(self._shape, Exception):
            raise self._shape
        return self._shape


ImageAndShape = namedtuple("ImageAndShape", "image shape")


class Unsized:
    def __len__(self) -> int:
        raise NotImplementedError


def loader(size: int | None = 4, sampler: Any = range(10), *, drop_last: bool = False) -> SimpleNamespace:
    return SimpleNamespace(batch_size=size, batch_sampler=size, sampler=sampler, drop_last=drop_last)


def test_the_last_batch_is_short_and_a_repeated_sampler_begins_again():
    rows = rows_of(loader())
    assert [rows("anything") for _ in range(6)] == [4, 4, 2, 4, 4, 2]


def test_no_batch_is_short_if_short_ones_are_dropped():
    rows = rows_of(loader(drop_last=True))
    assert [rows("anything") for _ in range(4)] == [4] * 4


def test_the_batch_is_looked_at_where_the_sampler_does_not_tell():
    assert rows_of(loader(sampler=Unsized())) is first_axis
    assert rows_of(SimpleNamespace(batch_size=None, batch_sampler="its own", sampler=range(10))) is first_axis


def test_a_loader_whose_attributes_raise_has_its_batches_looked_at():
    assert rows_of(SimpleNamespace(batch_size="four")) is first_axis
    assert rows_of(SimpleNamespace(batch_size=4)) is first_axis


def test_nobody_knows_the_rows_of_what_is_not_put_into_batches():
    assert math.isnan(rows_of(SimpleNamespace(batch_size=None, batch_sampler=None))(np.zeros(3)))


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        (np.zeros((5, 2)), 5),
        ([np.zeros((5, 2)), np.zeros(5)], 5),
        ({"x": np.zeros(6), "y": "a"}, 6),
        ([{"x": np.zeros(3)}] * 7, 7),
        (np.float64(1), math.nan),
        (["a", "b"], math.nan),
        ([], math.nan),
        (None, math.nan),
        ({}, math.nan),
        (((np.zeros((3, 8, 9)),) * 16, ({},) * 16), math.nan),  # tuple(zip(*batch)), as for detection
        ({"x": (np.zeros((3, 8, 9)),) * 16}, math.nan),
        (ImageAndShape(np.zeros((5, 2)), np.zeros(2)), 5),
        (Shaped(np.zeros((7, 2))), math.nan),
        (Shaped(None), math.nan),
        (Shaped(RuntimeError("a nested tensor has no shape")), math.nan),
        ([Shaped(RuntimeError("a nested tensor has no shape"))], math.nan),
    ],
)
def test_rows_are_the_first_axis_of_a_batch_or_of_the_first_array_in_it(batch: Any, rows: float):
    found = first_axis(batch)
    assert type(found) is float and found == pytest.approx(rows, nan_ok=True)
