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
    """Views of a feed whose window has room for eight blocks."""
    rows = np.repeat((np.arange(BLOCKS * BATCH) % 251).astype(np.uint8)[:, None], 50_000, 1)
    serve(penstock.ArraySource(rows, batch_size=BATCH, segments=4), memory=FakeGpu(5), window="4MiB")
    with penstock.attach("feed", device=CudaGpu("cuda"), borrow=True) as loader:
        yield loader
    assert not fake.faults


def test_a_training_that_runs_ahead_of_its_gpu_waits_for_it_and_is_not_told_to_let_views_go(borrowed, fake):
    epoch = list[int]()
    for batch in borrowed:
        assert (batch == batch[:, :1]).all()
        epoch += batch[:, 0].tolist()
        fake.launch()
    assert len(epoch) == BLOCKS * BATCH and borrowed.statistics().viewed_bytes == BLOCKS * BATCH * 50_000


def test_views_that_another_thread_lets_go_make_room_for_who_waits(borrowed, fake):
    batches, kept = iter(borrowed), list[Any]()
    for _ in range(7):
        kept.append(next(batches))
        fake.launch()
    connection = borrowed._rows.connection
    settle = connection.settle

    def settle_before_they_go(*, wait: bool) -> bool:
        settled = settle(wait=wait)
        other = threading.Thread(target=kept.clear)
        other.start()
        other.join()
        return settled

    connection.settle = settle_before_they_go
    assert sum(1 for _ in batches) == BLOCKS - 7
    assert not kept


def test_other_samples_are_selected_while_kernels_read_views_that_have_died(borrowed, fake):
    batches, stream = iter(borrowed), borrowed._rows
    for _ in range(6):
        next(batches)
        fake.launch()
        eventually(lambda: stream.connection.has(stream.place.next_item))  # who waits for it, waits for kernels
    assert borrowed._rows.connection.held.viewed_bytes > 2 << 20
    borrowed.select(np.arange(30))
    assert sum(len(batch) for batch in borrowed) == 30
