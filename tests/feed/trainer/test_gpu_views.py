"""Views of a GPU's ring that have died: their room is given back once the kernels that read them have run."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from tests.fakes.cuda import FakeCuda, installed
from tests.fakes.gpu import FakeGpu
from tests.forked import eventually

import penstock
from penstock.memory.cuda import CudaGpu

BLOCKS, BATCH = 40, 10


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A GPU whose kernels run until somebody waits for them."""
    return installed(monkeypatch, FakeCuda())


@pytest.fixture
def borrowed(serve: Any, fake: FakeCuda) -> Any:
    """A trainer that views a feed whose window has room for eight blocks, and that feed."""
    rows = np.repeat((np.arange(BLOCKS * BATCH) % 251).astype(np.uint8)[:, None], 50_000, 1)
    source = penstock.ArraySource(rows, batch_size=BATCH, segments=4)
    feeder = serve(source, memory=FakeGpu(5), window="4MiB")
    with penstock.attach("feed", device=CudaGpu("cuda"), borrow=True) as loader:
        yield loader, feeder
    assert not fake.faults


def test_a_training_that_runs_ahead_of_its_gpu_waits_for_it_and_is_not_told_to_let_views_go(borrowed, fake):
    (loader, _), epoch = borrowed, list[int]()
    for batch in loader:
        assert (batch == batch[:, :1]).all()
        epoch += batch[:, 0].tolist()
        fake.launch()
    assert len(epoch) == BLOCKS * BATCH and loader.statistics().viewed_bytes == BLOCKS * BATCH * 50_000


def test_views_that_another_thread_lets_go_make_room_for_who_waits(borrowed, fake):
    loader, feeder = borrowed
    batches, kept = iter(loader), list[Any]()
    for _ in range(8):
        kept.append(next(batches))
        fake.launch()
    eventually(lambda: feeder.statistics().waits_for == "trainers")
    connection = loader._rows.connection
    settle = connection.settle

    def settle_before_they_go(*, wait: bool) -> bool:
        settled = settle(wait=wait)
        other = threading.Thread(target=kept.clear)
        other.start()
        other.join()
        return settled

    connection.settle = settle_before_they_go
    assert sum(1 for _ in batches) == BLOCKS - 8
    assert not kept


def test_other_samples_are_selected_while_kernels_read_views_that_have_died(borrowed, fake):
    loader, _ = borrowed
    batches, stream = iter(loader), loader._rows
    for _ in range(6):
        next(batches)
        fake.launch()
        eventually(lambda: stream.connection.has(stream.place.next_item))  # who waits for it, waits for kernels
    assert stream.connection.held.viewed_bytes > 2 << 20
    loader.select(np.arange(30))
    assert sum(len(batch) for batch in loader) == 30


def test_a_batch_that_nobody_held_is_released_where_one_waits(borrowed, fake):
    loader, _ = borrowed
    batches, stream = iter(loader), loader._rows
    for _ in range(8):
        next(batches)
        fake.launch()
    assert stream.destination.settle(wait=True)
    assert not stream.connection.held.lent
