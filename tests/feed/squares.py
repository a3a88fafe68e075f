"""Samples with their squares, loops that check them, and parts of them, for tests of ``select=``."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import Dataset

import penstock

N = 203


class Squares(Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        return {"id": i, "square": np.full(3, i * i), "name": str(i), "nothing": np.empty(0)}


def arrays(**options: Any) -> penstock.ArraySource:
    ids = np.arange(N)
    tree = {"id": ids, "square": np.repeat(ids[:, None] ** 2, 3, 1), "name": [str(i) for i in ids]}
    return penstock.ArraySource(tree, **{"batch_size": 10, "segments": 4, **options})


def right(batch: Any) -> list[int]:
    """The samples of a batch, each with what belongs to it."""
    ids = np.asarray(batch["id"])
    assert (np.asarray(batch["square"]) == ids[:, None] ** 2).all()
    assert list(batch.get("name", map(str, ids))) == list(map(str, ids))
    return ids.tolist()


def epoch_of(loader: penstock.Loader) -> list[int]:
    """The samples of a loop, whose ids the loader knows."""
    seen: list[int] = []
    batches = 0
    for batch in loader:
        seen += right(batch)
        batches += 1
        assert loader.ids is not None and loader.ids.tolist() == right(batch)
    assert batches == len(loader)
    return seen


def part(seed: int, share: float) -> list[int]:
    return np.flatnonzero(np.random.default_rng(seed).random(N) < share).tolist()
