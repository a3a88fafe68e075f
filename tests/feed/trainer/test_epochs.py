"""Promises 1 to 3: every sample exactly once, at any batch size, from the next segment on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from torch.utils.data import DataLoader

import penstock


def ids_of(loader: penstock.Loader) -> list[int]:
    return [int(i) for batch in loader for i in batch["id"]]


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    samples=st.integers(1, 300),
    source=st.integers(1, 70),
    size=st.integers(1, 130),
    segments=st.integers(1, 20),
    drop_last=st.booleans(),
)
def test_an_epoch_is_every_sample_once(serve, samples, source, size, segments, drop_last):
    arrays = penstock.ArraySource({"id": np.arange(samples)}, batch_size=source, segments=segments)
    with_name = f"{samples}-{source}-{size}-{segments}-{drop_last}"
    feeder = serve(arrays, with_name)
    with penstock.attach(with_name, size, drop_last=drop_last) as loader:
        for _ in range(2):
            ids = ids_of(loader)
            assert len(set(ids)) == len(ids)
            assert len(ids) == (samples // size * size if drop_last else samples)
    feeder.close()


@pytest.mark.parametrize("order", [{}, {"shuffle": True}, {"sampler": range(100)}], ids=str)
@pytest.mark.parametrize("segments", [1, 3])
def test_each_trainer_gets_what_its_own_loader_would_count(serve, order, segments):
    """Whoever made the feed: its loader's ``drop_last`` cuts nobody's batches but those of its own size."""
    data: Any = [{"id": i} for i in range(100)]
    serve(DataLoader(data, 64, drop_last=True, **order), segments=segments)
    for size in (64, 32, 7, 100, 101):
        for drop_last in (None, True, False):
            own = DataLoader(data, size, drop_last=drop_last is not False, collate_fn=len, **order)
            with penstock.attach("feed", size, drop_last=drop_last) as loader:
                for _ in range(2):
                    assert len(loader) == len(own)
                    assert [len(batch["id"]) for batch in loader] == list(own)


def test_the_first_rows_of_a_loader_that_drops_its_last_batch_come_as_from_that_loader_alone(serve):
    data: Any = [{"id": i} for i in range(100)]
    torch.manual_seed(5)
    alone = [
        [batch["id"].tolist() for batch in epoch] for epoch in [DataLoader(data, 8, True, drop_last=True)] * 3
    ]
    serve(DataLoader(data, 8, True, drop_last=True), segments=1, seed=5)
    with penstock.attach("feed") as loader:
        assert [[batch["id"].tolist() for batch in loader] for _ in range(3)] == alone


@pytest.mark.parametrize("rows_first", [1, 130, 700])
def test_a_late_trainer_joins_at_a_segment_and_gets_its_epoch(serve, rows_first):
    serve(penstock.ArraySource({"id": np.arange(1000)}, batch_size=10, segments=4), window=1 << 12)
    with penstock.attach("feed", 10) as early:
        seen: list[int] = []
        batches = iter(early)
        while len(seen) < rows_first:
            seen.extend(next(batches)["id"])
        with penstock.attach("feed", 33) as late:
            first = next(iter(late))
            assert len(first["id"]) == 33
            start = late.state_dict()["start"]
            assert start[1] % 250 == 0
            del first
