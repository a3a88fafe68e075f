"""What a trainer calls for a batch on a GPU, counted over a CUDA that is none."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from tests.fakes.cuda import FakeCuda, installed
from tests.fakes.gpu import FakeGpu
from tests.forked import eventually

import penstock
from penstock.feed.trainer import rows as stream_of_rows
from penstock.memory.cuda import CudaGpu

PENSTOCK = str(Path(penstock.__file__).parent)
SAMPLES, BATCH = 12_000, 10


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    monkeypatch.setattr(stream_of_rows, "_POLLED_AFTER_S", 60.0)  # what a clock brings besides is no batch's
    return installed(monkeypatch, FakeCuda())


def counted(step: Callable[[], object]) -> int:
    """Count the calls of Penstock's Python functions."""
    calls = 0

    def count(frame: Any, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(PENSTOCK)

    sys.setprofile(count)
    try:
        step()
    finally:
        sys.setprofile(None)
    return calls


def of_batches(fake: FakeCuda, loader: penstock.Loader, *, ready: int, feeder: Any) -> tuple[float, Counter[str]]:
    """What a batch has taken, with a GPU that keeps up, and this many blocks ready or one that comes.

    Of Penstock's calls the median: a few more are made where a block comes late, or many at once. A trainer that
    looks ahead has what it looks for: where that is late, one call begins no batch, and the next begins two.
    """
    most, calls = Counter[str](), list[int]()
    batches, stream = iter(loader), loader._rows
    next(batches)
    kept = [stream.destination._gpu.here() for _ in range(3)]  # as many as there are where no block is waited for
    for event in kept:
        event.wait()
    for i in range(12):
        if ready > 1:
            eventually(lambda: feeder.statistics().blocks - stream.place.next_item >= ready)
        if stream.destination.runs_ahead:
            eventually(lambda: stream.connection.has(stream.place.next_item + 1))
        fake.synchronize()
        fake.calls.clear()
        took = counted(lambda: next(batches))
        if i >= 3:  # before, what is kept is made
            calls.append(took)
            most |= fake.calls
    return median(calls), most


@pytest.mark.parametrize("ready", [1, 950])
def test_a_batch_from_a_ring_on_the_gpu_is_one_copy_and_one_record_in_the_trainers_stream(serve, fake, ready):
    source = penstock.ArraySource(np.arange(SAMPLES), batch_size=BATCH)
    feeder = serve(source, memory=FakeGpu(5), window="4MiB", prefetch=ready + 60)
    with penstock.attach("feed", device=CudaGpu("cuda")) as loader:
        calls, most = of_batches(fake, loader, ready=ready, feeder=feeder)
        assert loader.statistics().handed == "copy on cuda:0, on the trainer's stream"
    assert most == {"records": 1, "queries": 1}
    assert calls <= 100


@pytest.mark.parametrize("ready", [1, 950])
def test_a_batch_from_a_ring_on_the_host_is_copied_in_one_context_with_one_record(serve, fake, ready):
    source = penstock.ArraySource({"x": np.arange(SAMPLES), "y": np.arange(SAMPLES)}, batch_size=BATCH)
    feeder = serve(source, window="4MiB", prefetch=ready + 60)
    with penstock.attach("feed", device=CudaGpu("cuda")) as loader:
        calls, most = of_batches(fake, loader, ready=ready, feeder=feeder)
    assert most == {"contexts": 1, "records": 1, "queries": 1, "waits in streams": 1, "recorded streams": 2}
    assert calls <= 130
