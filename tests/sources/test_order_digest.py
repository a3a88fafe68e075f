"""The digest of an order: what changes the order changes it, what does not leaves it, in any process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.forked import Forked
from tests.sources.drawing import Drawing, DrawingStream
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
from penstock.sources.adapt import adapt
from penstock.sources.packed.packing import pack

ROWS = {"id": np.arange(60)}
DATA = Drawing(60)


def owned(seed: int = 77) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


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
SAME: dict[str, Callable[[], list[str]]] = {
    "arrays": lambda: [
        of(penstock.ArraySource(ROWS, batch_size=6)),
        of(penstock.ArraySource({"other": np.zeros((60, 3))}, batch_size=6), seed=9, segments=2),
    ],
    "left out": lambda: [
        of(penstock.ArraySource(ROWS, batch_size=7, drop_last=drop_last), segments=1)
        for drop_last in (False, True)
    ],
    "left out by a loader": lambda: [
        of(DataLoader(DATA, 7, shuffle=True, drop_last=drop_last), segments=1) for drop_last in (False, True)
    ],
    "left out by a loader with a sampler": lambda: [
        of(DataLoader(DATA, 7, sampler=SubsetRandomSampler(range(60)), drop_last=drop_last))
        for drop_last in (False, True)
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


def test_two_processes_give_one_digest(servers, tmp_path):
    """Neither addresses nor the salt of Python's hashes, which change from process to process, are in it."""
    here = [digest for kind in ORDERS for digest in ORDERS[kind]()]
    script = tmp_path / "script.py"
    script.write_text(
        "from tests.sources.test_order_digest import ORDERS\nprint(*(d for k in ORDERS for d in ORDERS[k]()))"
    )
    there = Forked(servers["torch"], str(script), [], tmp_path / "out")  # from a process that has another salt
    assert there.wait() == 0, there.output
    assert there.output.split() == here
