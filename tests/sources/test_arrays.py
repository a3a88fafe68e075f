"""Arrays in memory as a source."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import penstock
from penstock.contracts import Cursor
from penstock.sources.plain import ArraySource
from penstock.testing.source import SourceContract


class TestShuffledArrays(SourceContract):
    def make(self, seed: int = 0) -> ArraySource:
        return ArraySource({"id": np.arange(203)}, batch_size=10, segments=6, seed=seed)

    def expected(self) -> Counter[Any]:
        return Counter(range(203))


class TestArraysInOrder(SourceContract):
    def make(self, seed: int = 0) -> ArraySource:
        return ArraySource({"id": np.arange(100)}, batch_size=7, shuffle=False, segments=16, seed=seed)

    def expected(self) -> Counter[Any]:
        return Counter(range(100))


class TestTensorsInOneSegment(SourceContract):
    def make(self, seed: int = 0) -> ArraySource:
        return ArraySource({"id": torch.arange(64)}, batch_size=8, segments=1, seed=seed)

    def expected(self) -> Counter[Any]:
        return Counter(range(64))


class Sample(NamedTuple):
    image: torch.Tensor
    more: dict[str, Any]


def test_all_leaves_of_a_row_stay_together():
    ids = np.arange(50)
    tree = Sample(
        torch.from_numpy(ids).reshape(50, 1, 1).repeat(1, 2, 3).to(torch.bfloat16),
        {
            "name": [f"file {i}" for i in ids],
            "z": ids * 1j,
            "when": ids.astype("datetime64[s]"),
            "t": tuple(ids.tolist()),
        },
    )
    source = ArraySource(tree, batch_size=8, segments=3)
    seen: list[int] = []
    for block in source.open(Cursor(4, 0)):
        got = block.tree
        assert type(got) is Sample
        assert got.image.dtype == torch.bfloat16
        assert got.image.shape == (block.rows, 2, 3)
        at = list(got.more["t"])
        assert isinstance(got.more["t"], tuple)
        assert got.more["name"] == [f"file {i}" for i in at]
        assert (got.more["z"].imag == at).all()
        assert (got.more["when"] == np.array(at).astype("datetime64[s]")).all()
        assert got.image[:, 1, 2].to(torch.int64).tolist() == at
        seen += at
    assert sorted(seen) == list(range(50))


@pytest.mark.parametrize("segments", [1, 2])
def test_drop_last_is_left_to_the_trainers(segments):
    source = ArraySource({"id": np.arange(25)}, batch_size=10, drop_last=True, segments=segments)
    assert (source.samples, source.batches, source.drop_last) == (25, 3, True)
    assert sorted(int(i) for block in source.open(Cursor(1, 0)) for i in block.tree["id"]) == list(range(25))


def test_a_block_is_private():
    data = np.arange(10)
    source = ArraySource({"id": data}, batch_size=5, shuffle=False)
    next(source.open(Cursor(0, 0))).tree["id"][:] = -1
    assert data.tolist() == list(range(10))


def test_arrays_that_cannot_be_fed_are_refused():
    with pytest.raises(penstock.UnsupportedLeaf, match=r"leaf batch\['b'\] has shape \(3,\)"):
        ArraySource({"a": np.zeros(4), "b": np.zeros(3)})
    with pytest.raises(penstock.BadSetting, match="batch_size=0: it must be a whole number"):
        ArraySource(np.zeros(4), batch_size=0)
    with pytest.raises(penstock.BadSetting, match="0 samples"):
        ArraySource(np.zeros(0))
