"""What a data set draws: as many different numbers as alone, wherever a cycle is opened, in whichever process."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.sources.drawing import GENERATORS, Drawing, DrawingBatches, DrawingStream, draws_of, owned, rows_of
from torch.utils.data import DataLoader, Sampler, SubsetRandomSampler, WeightedRandomSampler

from penstock.contracts import Cursor
from penstock.sources.adapt import adapt

SIZE = 60


class Numbers(Sampler[int]):
    """The samples in their order; a sampler of a user's own."""

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Any:
        return iter(range(SIZE))


def loader(workers: int, **options: Any) -> Any:
    return DataLoader(Drawing(SIZE), 10, num_workers=workers, **options)


Make = Callable[[int], Any]
"""From a number of workers to something to feed."""
MAP_STYLE: dict[str, Make] = {
    "in order": loader,
    "shuffled": lambda workers: loader(workers, shuffle=True),
    "generator": lambda workers: loader(workers, shuffle=True, generator=owned()),
    "weighted": lambda workers: loader(workers, sampler=WeightedRandomSampler([1.0] * SIZE, SIZE)),
    "subset, generator": lambda workers: loader(workers, sampler=SubsetRandomSampler(range(SIZE), owned())),
    "sampler of one's own": lambda workers: loader(workers, sampler=Numbers()),
}
STREAMS: dict[str, Make] = {
    "stream": lambda workers: DataLoader(DrawingStream(SIZE), 10, num_workers=workers),
    "stream, generator": lambda workers: DataLoader(
        DrawingStream(SIZE), 10, num_workers=workers, generator=owned()
    ),
    "stream, persistent": lambda workers: DataLoader(
        DrawingStream(SIZE), 10, num_workers=workers, persistent_workers=workers > 0
    ),
    "batches": lambda _: DrawingBatches(SIZE),
}


def persistent(workers: int) -> Any:
    return loader(workers, shuffle=True, persistent_workers=True)


def source_of(make: Make, workers: int, *, segments: int = 1, seed: int = 0) -> Any:
    """The source in a feeder's process that has just begun."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    return adapt(make(workers), segments=segments, seed=seed)


IN_WORKERS = ["shuffled", "generator", "weighted", "stream", "stream, persistent"]


@pytest.mark.parametrize(
    ("kind", "workers", "segments"),
    [
        *((kind, 0, segments) for kind, segments in zip([*MAP_STYLE, *STREAMS], [1, 16] * 5, strict=True)),
        *((kind, 2, 1) for kind in IN_WORKERS),
    ],
)
def test_epochs_draw_as_many_different_numbers_as_alone(kind, workers, segments):
    source, epochs = source_of((MAP_STYLE | STREAMS)[kind], workers, segments=segments), 3 if workers else 10
    rows = [row for cycle in range(epochs) for row in rows_of(source, Cursor(cycle, 0))]
    for generator in GENERATORS:
        assert len(draws_of(rows, generator)) == len(rows) == epochs * SIZE


@pytest.mark.parametrize(("workers", "cycle"), [(0, 2), (1, 0)])
@pytest.mark.parametrize(
    "kind", ["in order", "generator", "weighted", "subset, generator", "sampler of one's own"]
)
def test_the_rows_after_a_failover_do_not_get_the_draws_of_the_first(kind, workers, cycle):
    before = rows_of(source_of(MAP_STYLE[kind], workers), Cursor(cycle, 0), 30)
    after = rows_of(source_of(MAP_STYLE[kind], workers), Cursor(cycle, 30))
    for generator in GENERATORS:
        assert not draws_of(before, generator) & draws_of(after, generator)


@pytest.mark.parametrize(("kind", "workers"), [("stream", 2), ("stream, generator", 0)])
def test_the_rows_of_a_stream_after_a_failover_get_the_draws_that_they_would_have_had(kind, workers):
    """What a stream draws may decide its order, so a pass is repeated as a whole."""
    for cycle in (0, 2):
        whole = rows_of(source_of(STREAMS[kind], workers), Cursor(cycle, 0))
        assert rows_of(source_of(STREAMS[kind], workers), Cursor(cycle, 30)) == whole[30:]


@pytest.mark.parametrize("first", [Cursor(3, 0), Cursor(0, 30)])
def test_workers_that_persist_are_seeded_by_what_is_opened_first(first):
    from_the_beginning = source_of(persistent, 1)
    rows = rows_of(from_the_beginning, Cursor(0, 0))
    from_the_beginning.close()
    later = source_of(persistent, 1)
    for generator in GENERATORS:
        assert not draws_of(rows, generator) & draws_of(rows_of(later, first), generator)
    later.close()


@pytest.mark.parametrize("kind", [*MAP_STYLE, *STREAMS])
def test_neighbouring_seeds_have_no_epoch_in_common(kind):
    make = (MAP_STYLE | STREAMS)[kind]
    one = rows_of(source_of(make, 0, seed=0), Cursor(1, 0))
    other = rows_of(source_of(make, 0, seed=1), Cursor(0, 0))
    assert not draws_of(one, "torch") & draws_of(other, "torch")
