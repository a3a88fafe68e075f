"""Promises 1 to 3: every sample exactly once, at any batch size, from the next segment on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.feed.reading import ids_of
from tests.forked import Forked
from torch.utils.data import DataLoader

import penstock


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


TRAINER = """
import sys, numpy as np, penstock
assert "torch" not in sys.modules
seen = []
with penstock.attach("many", int(sys.argv[1])) as loader:
    for _ in range(2):
        ids = np.concatenate([batch["id"] for batch in loader])
        assert np.array_equal(np.sort(ids), np.arange(3000)), "lost or repeated"
"""


def test_sixty_four_trainers_finish_with_every_sample_once(serve, servers, tmp_path):
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    source = penstock.ArraySource({"id": np.arange(3000), "x": np.zeros((3000, 64), np.float32)}, batch_size=64)
    serve(source, "many", window="4MiB")
    trainers = [Forked(servers["numpy"], str(script), [str(7 + i)], tmp_path / f"{i}") for i in range(64)]
    for trainer in trainers:
        assert trainer.wait() == 0, trainer.output
