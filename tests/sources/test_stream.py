"""Anything that can be iterated again and again as a source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.contracts import Cursor
from penstock.sources.plain import IterableSource
from penstock.testing.source import SourceContract


class Pass:
    """Batches of 1, 2, 3 … rows, afresh for each iteration."""

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        start = 0
        for rows in range(1, 12):
            yield {"id": np.arange(start, start + rows)}
            start += rows


class TestReiterable(SourceContract):
    def make(self, seed: int = 0) -> IterableSource:
        return IterableSource(Pass())

    def expected(self) -> Counter[Any]:
        return Counter(range(66))


class TestList(SourceContract):
    def make(self, seed: int = 0) -> IterableSource:
        return IterableSource([{"id": np.arange(i * 10, i * 10 + 10)} for i in range(12)])

    def expected(self) -> Counter[Any]:
        return Counter(range(120))


def test_a_batch_without_rows_is_passed_over():
    source = IterableSource([np.arange(0), np.arange(3), np.arange(0), np.arange(3, 5)])
    assert [(b.sample, b.rows) for b in source.open(Cursor(0, 0))] == [(0, 3), (3, 2)]


def test_what_can_be_iterated_only_once_is_refused():
    with pytest.raises(penstock.BadSetting, match="only once"):
        IterableSource(iter([np.zeros(3)]))
    with pytest.raises(penstock.BadSetting, match="a generator can be iterated only once"):
        IterableSource(np.zeros(3) for _ in range(2))


def test_an_empty_pass_is_an_error_and_not_an_endless_loop():
    with pytest.raises(penstock.SourceError, match="no sample in cycle 4"):
        list(IterableSource([]).open(Cursor(4, 0)))


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
