"""Every kind of source, through a feeder, beside a plain DataLoader: samples, random draws, lengths."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.feed.reading import at_once
from tests.sources.drawing import Drawing, DrawingStream
from torch.utils.data import DataLoader, RandomSampler, Sampler, SubsetRandomSampler, WeightedRandomSampler

import penstock
from penstock.sources.packed.packing import pack

pytestmark = pytest.mark.whole

SEED = 11
SIZE = 107
BATCH = 10
EPOCHS = 2


class Buckets(Sampler[list[int]]):
    """A batch sampler of batches of 1, 2, 3 … rows, in another order each time."""

    def __init__(self) -> None:
        starts = np.cumsum([0, *range(1, 14)])
        self.buckets = [list(range(a, b)) for a, b in pairwise(starts.tolist())]

    def __len__(self) -> int:
        return len(self.buckets)

    def __iter__(self) -> Iterator[list[int]]:
        random.shuffle(self.buckets)
        yield from self.buckets


SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": dict,
    "shuffle": lambda: {"shuffle": True},
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0, 2.0] * 53 + [1.0], SIZE)},
    "replacement": lambda: {"sampler": RandomSampler(range(SIZE), replacement=True, num_samples=87)},
    "subset": lambda: {"sampler": SubsetRandomSampler(range(20, SIZE))},
    "buckets": lambda: {"batch_sampler": Buckets()},
}
WITH_REPLACEMENT = ("weighted", "replacement")


class Cell(NamedTuple):
    kind: str
    sampler: str = "none"
    workers: int = 0
    segments: int = 1
    drop_last: bool = False
    ranks: int = 1

    def loader(self) -> DataLoader[Any]:
        """The DataLoader alone, or one of the same samples and batches."""
        settings = SAMPLERS[self.sampler]()
        if "batch_sampler" not in settings:
            settings |= {"batch_size": BATCH, "drop_last": self.drop_last}
        data = DrawingStream(SIZE) if self.kind == "stream" else Drawing(SIZE)
        return DataLoader(data, num_workers=self.workers, **settings)

    def fed(self, folder: Path) -> Any:
        own = {"batch_size": BATCH, "drop_last": self.drop_last, "segments": self.segments, "seed": SEED}
        match self.kind:
            case "arrays":
                return penstock.ArraySource({"id": np.arange(SIZE)}, shuffle=self.sampler == "shuffle", **own)
            case "packed":
                return penstock.PackedSource(folder, shuffle=self.sampler == "shuffle", reader="posix", **own)
            case "batches":
                return [{"id": np.arange(i, min(i + BATCH, SIZE))} for i in range(0, SIZE, BATCH)]
            case _:
                return self.loader()

    @property
    def draws(self) -> bool:
        return self.kind in ("map-style", "stream")

    @property
    def length_is_known(self) -> bool:
        return self.kind not in ("stream", "batches") and self.sampler != "buckets"


def cells() -> Iterator[Cell]:
    switches = list(product((1, 16), (False, True), (1, 2)))
    for i, (segments, drop_last, ranks) in enumerate(switches):
        for sampler in SAMPLERS:
            if sampler != "buckets" or not drop_last:
                yield Cell("map-style", sampler, 0, segments, drop_last, ranks)
        for kind, sampler in zip(("arrays", "packed")[:: (-1) ** i.bit_count()], ("none", "shuffle"), strict=True):
            yield Cell(kind, sampler, 0, segments, drop_last, ranks)
    for drop_last, ranks in product((False, True), (1, 2)):
        yield Cell("stream", drop_last=drop_last, ranks=ranks)
    for ranks in (1, 2):
        yield Cell("batches", ranks=ranks)
    for i, sampler in enumerate(SAMPLERS):  # each cell of workers costs a second
        yield Cell("map-style", sampler, 1 + i % 2, 1)
    for workers in (1, 2):
        yield Cell("map-style", "shuffle", workers, 16, drop_last=workers == 1, ranks=2)
        yield Cell("map-style", "shuffle", 3 - workers, 16, drop_last=workers == 1)
        yield Cell("stream", "none", workers, 1, drop_last=workers == 1, ranks=workers)


def cells_of_workers() -> Iterator[Any]:
    """The rest of the matrix: every cell of a loader with one or two workers."""
    every = product((1, 2), (1, 16), (False, True), (1, 2))
    for (workers, segments, drop_last, ranks), sampler in product(every, ("stream", *SAMPLERS)):
        kind = ("stream", "none") if sampler == "stream" else ("map-style", sampler)
        cell = Cell(*kind, workers, segments, drop_last, ranks)
        if cell not in cells() and not (sampler == "buckets" and drop_last):
            yield pytest.param(cell, marks=pytest.mark.soak)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packed") / "rows"
    pack([{"id": np.arange(SIZE)}], path)
    return path


def epochs_alone(cell: Cell) -> list[list[Any]]:
    torch.manual_seed(SEED)
    random.seed(SEED)
    loader = cell.loader()
    return [list(loader) for _ in range(EPOCHS)]


def epochs_of(cell: Cell) -> tuple[list[list[list[Any]]], list[int]]:
    """Of each rank its epochs, and the length that its Loader says it has."""
    # Nobody knows beforehand how the end of a pass of unknown length could be dealt out.
    drop_last = True if cell.ranks > 1 and not cell.length_is_known else None

    def read(rank: int) -> tuple[list[list[Any]], int]:
        with penstock.attach("feed", shard=(rank, cell.ranks), drop_last=drop_last) as loader:
            given = [list(loader) for _ in range(EPOCHS)]
            try:
                return given, len(loader)
            except TypeError:
                return given, -1

    given, lengths = zip(*at_once(read, cell.ranks), strict=True)
    return [*given], [*lengths]


def values(batches: list[Any], leaf: str) -> list[float]:
    return [value for batch in batches for value in batch[leaf].tolist()]


@pytest.mark.parametrize("cell", [*cells(), *cells_of_workers()], ids=lambda cell: "-".join(map(str, cell)))
def test_a_feed_gives_what_a_plain_loader_gives(serve, folder, cell):
    alone = epochs_alone(cell)
    serve(cell.fed(folder), segments=cell.segments, seed=SEED)
    given, lengths = epochs_of(cell)
    rows_alone = len(values(alone[0], "id"))
    for epoch in range(EPOCHS):
        ids = [i for rank in given for i in values(rank[epoch], "id")]
        own = values(alone[epoch], "id")
        if cell.ranks == 1:
            assert len(ids) == len(own) == rows_alone
        assert set(ids) <= set(range(SIZE))
        if cell.sampler not in WITH_REPLACEMENT:
            assert max(Counter(ids).values()) == 1
        if cell.ranks == 1 and not cell.drop_last and cell.sampler not in WITH_REPLACEMENT:
            assert sorted(ids) == sorted(own)
        if cell.ranks > 1 and cell.length_is_known:
            step = BATCH * cell.ranks
            assert len(ids) == (rows_alone // step * step if cell.drop_last else rows_alone)
        assert len({len(rank[epoch]) for rank in given}) == 1, "ranks take equally many steps"
    if cell.draws:
        draws = [draw for rank in given for batches in rank for draw in values(batches, "torch")]
        assert len(set(draws)) == len(draws)
        if cell.ranks == 1 and cell.segments == 1:
            assert values(given[0][0], "id") == values(alone[0], "id"), "the first epoch is as alone"
            assert values(given[0][0], "torch") == values(alone[0], "torch")
    for rank, length in zip(given, lengths, strict=True):
        if cell.kind != "stream":
            assert length == len(rank[0])
        if cell.kind != "stream" and cell.ranks == 1:
            assert length == len(alone[0])
