"""Arrays in memory, and anything that can be iterated again and again, as sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import penstock
from penstock.contracts import Cursor, Source
from penstock.errors import BadSetting, SourceError, UnsupportedLeaf
from penstock.sources.plain import ArraySource, IterableSource
from penstock.testing.source import SourceContract


class Pass:
    """Batches of 1, 2, 3 … rows, afresh for each iteration."""

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        start = 0
        for rows in range(1, 12):
            yield {"id": np.arange(start, start + rows)}
            start += rows


def ragged(samples: int) -> dict[str, Any]:
    """Of each sample a row of one to three items, the first of which is its number."""
    rows = [np.full(1 + i % 3, i) for i in range(samples)]
    return {"id": np.arange(samples), "rows": penstock.RaggedRows.of(rows), "names": ["a"] * samples}


BATCHES = [{"id": np.arange(i * 10, i * 10 + 10)} for i in range(12)]
KINDS: dict[str, tuple[Callable[[int], Source], int]] = {
    "shuffled": (lambda seed: ArraySource({"id": np.arange(203)}, batch_size=10, segments=6, seed=seed), 203),
    "in order": (lambda _: ArraySource({"id": np.arange(100)}, batch_size=7, shuffle=False, segments=16), 100),
    "tensors": (lambda seed: ArraySource({"id": torch.arange(64)}, batch_size=8, segments=1, seed=seed), 64),
    "ragged": (lambda seed: ArraySource(ragged(70), batch_size=9, segments=2, seed=seed), 70),
    "re-iterable": (lambda _: IterableSource(Pass()), 66),
    "list": (lambda _: IterableSource(BATCHES), 120),
}


class TestPlain(SourceContract):
    @pytest.fixture(autouse=True, params=KINDS)
    def _kind(self, request: pytest.FixtureRequest) -> None:
        self.source, self.rows = KINDS[request.param]

    def make(self, seed: int = 0) -> Source:
        return self.source(seed)

    def expected(self) -> Counter[Any]:
        return Counter(range(self.rows))


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


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (
            lambda: ArraySource({"a": np.zeros(4), "b": np.zeros(3)}),
            UnsupportedLeaf,
            r"batch\['b'\] has shape \(3,\)",
        ),
        (lambda: ArraySource(np.zeros(4), batch_size=0), BadSetting, "batch_size=0: it must be a whole number"),
        (lambda: ArraySource(np.zeros(0)), BadSetting, "0 samples"),
        (lambda: IterableSource(iter([np.zeros(3)])), BadSetting, "only once"),
        (lambda: IterableSource(np.zeros(3) for _ in "ab"), BadSetting, "a generator can be iterated only once"),
        (lambda: [*IterableSource([]).open(Cursor(4, 0))], SourceError, "no sample in cycle 4"),
    ],
)
def test_what_cannot_be_fed_is_refused_and_an_empty_pass_is_no_endless_loop(make, error, match):
    with pytest.raises(error, match=match):
        make()


def test_a_batch_without_rows_is_passed_over():
    source = IterableSource([np.arange(0), np.arange(3), np.arange(0), np.arange(3, 5)])
    assert [(b.sample, b.rows) for b in source.open(Cursor(0, 0))] == [(0, 3), (3, 2)]


def test_a_generator_that_is_broken_off_is_closed():
    closed: list[bool] = []

    class Noting:
        def __iter__(self) -> Iterator[np.ndarray]:
            try:
                yield np.zeros(3)
                yield np.zeros(3)
            finally:
                closed.append(True)

    blocks = IterableSource(Noting()).open(Cursor(0, 0))
    next(blocks)
    blocks.close()  # type: ignore[attr-defined]
    assert closed == [True]


def test_a_length_is_told_where_there_is_one():
    assert IterableSource([np.zeros(1)] * 7).batches == 7
    assert IterableSource(Pass()).batches is None
