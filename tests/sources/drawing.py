"""Samples that draw random numbers from every generator there is, and loops that count and compare them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from penstock.contracts import Cursor, Source

GENERATORS = ("torch", "python", "numpy")


def owned(seed: int = 77) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(i: int) -> dict[str, Any]:
    """A sample: its number, and what each generator gives for it."""
    return {
        "id": i,
        "torch": torch.rand((), dtype=torch.float64),
        "python": random.random(),
        "numpy": np.random.rand(),
    }


class Drawing(Dataset[dict[str, Any]]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> dict[str, Any]:
        return drawn(i)


class DrawingStream(IterableDataset[dict[str, Any]]):
    """A stream of which each worker gives its part."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return (drawn(i) for i in range(first, self.size, step))


class DrawingBatches:
    """Ready batches, each of ten rows."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, self.size, 10):
            rows = [drawn(i) for i in range(start, start + 10)]
            yield {key: np.array([row[key] for row in rows]) for key in rows[0]}


def rows_of(source: Source, at: Cursor, most: int | None = None) -> list[dict[str, Any]]:
    """The samples of a pass from ``at`` on, ``most`` of them at most."""
    rows: list[dict[str, Any]] = []
    blocks = source.open(at)
    with closing(blocks):  # type: ignore[type-var]
        for block in blocks:
            leaves = {key: np.asarray(leaf).tolist() for key, leaf in block.tree.items()}
            rows += [{key: leaf[i] for key, leaf in leaves.items()} for i in range(block.rows)]
            if most is not None and len(rows) >= most:
                break
    return rows


def ids_of(source: Source, at: Cursor, most: int | None = None) -> list[int]:
    return [row["id"] for row in rows_of(source, at, most)]


def draws_of(rows: list[dict[str, Any]], generator: str) -> set[float]:
    return {row[generator] for row in rows}


def assert_identical(one: Any, other: Any) -> None:
    """Equal in types and values, bit for bit."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_identical(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_identical(a, b)
    else:
        assert one == other
