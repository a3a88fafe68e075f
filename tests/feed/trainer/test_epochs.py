"""Promises 1 to 3: every sample exactly once, at any batch size, from the next segment on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

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
