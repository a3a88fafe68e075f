"""A trainer that copies out of a ring on its GPU, in the stream on which it computes: what goes, and when."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.contracts.ring import PAGE_BYTES
from tests.fakes.cuda import FakeCuda, installed
from tests.fakes.gpu import FakeGpu
from tests.feed.numbered import SAMPLES, ids_of, ids_of_host, rows
from tests.forked import eventually

import penstock
from penstock.contracts import Event
from penstock.feed.trainer.batch_builder import BatchBuilder
from penstock.feed.trainer.destination import OnGpu
from penstock.memory.cuda import CudaGpu
from penstock.memory.gpu_ring import WritableDeviceRing


class Lagging(FakeGpu):
    """A GPU whose current stream gets to a copy some time after that was launched, behind steps of the trainer."""

    lag_s = 0.02

    def here(self) -> Event:
        return _Later(super().here(), time.monotonic() + self.lag_s)


class _Later:
    def __init__(self, mark: Event, passes_s: float) -> None:
        self._mark, self._passes_s, self.stream = mark, passes_s, mark.stream

    def passed(self) -> bool:
        return time.monotonic() >= self._passes_s and self._mark.passed()

    def wait(self) -> None:
        time.sleep(max(0.0, self._passes_s - time.monotonic()))
        self._mark.wait()


class Unseen(FakeGpu):
    """A GPU whose events pass only for those who wait for them."""

    def here(self) -> Event:
        return _AtLast(super().here(), float("inf"))


class _AtLast(_Later):
    def wait(self) -> None:
        self._mark.wait()


@pytest.mark.parametrize("blocks", [2, 3, 4, 8])
@pytest.mark.parametrize("gpu", [Lagging(1), Unseen(1)], ids=["lagging", "unseen"])
def test_who_waits_for_a_block_releases_what_was_copied_though_nobody_else_looks(serve, blocks, gpu):
    block_bytes = 10 * (96 + 8) + 64  # as they lie, aligned
    serve(rows(), memory=FakeGpu(5), window=blocks * block_bytes + 64)
    with penstock.attach("feed", 10, device=gpu) as loader:
        assert sorted(ids_of(loader)) == list(range(SAMPLES))


def test_two_batches_of_a_gpus_ring_are_alive_at_a_time(serve: Any) -> None:
    """The one that the loop variable holds, and the next; none is copied ahead."""
    serve(rows(), memory=FakeGpu(5))
    nbytes = 10 * (96 + 8)
    with penstock.attach("feed", 10, device=FakeGpu(1, memory_bytes=2 * nbytes)) as loader:
        assert sorted(ids_of(loader)) == list(range(SAMPLES))


@pytest.mark.parametrize("memory", ["host", FakeGpu(5)], ids=["host", "gpu"])
def test_a_batch_is_refused_while_a_graph_is_captured_and_comes_after_it(serve: Any, memory: Any) -> None:
    serve(rows(), memory=memory)
    gpu = FakeGpu(1)
    with penstock.attach("feed", 10, device=gpu) as loader:
        batches = iter(loader)
        seen = next(batches)["id"].tolist()
        gpu.capturing = True
        with pytest.raises(penstock.errors.BadSetting, match=r"captures a graph.*outside of torch\.cuda\.graph"):
            next(batches)
        gpu.capturing = False
        assert sorted(seen + ids_of(batches)) == list(range(SAMPLES))


def test_a_batch_belongs_to_the_stream_on_which_it_was_asked_for(serve: Any, monkeypatch: Any) -> None:
    fake = installed(monkeypatch, FakeCuda())
    feeder = serve(rows(), memory=FakeGpu(5), prefetch=8)
    own = fake.torch.cuda.Stream()
    with penstock.attach("feed", device=CudaGpu("cuda")) as loader:
        held = loader._rows.connection.held
        batches = iter(loader)
        assert loader.statistics().handed == "copy on cuda:0, on the trainer's stream"
        with fake.torch.cuda.stream(own):
            first = next(batches)
        assert feeder.statistics().trainers[0].way == loader.statistics().handed
        eventually(lambda: feeder.statistics().blocks_held >= 5)  # who has to wait, waits for copies, too
        second = next(batches)
        fake.computing.run()
        third = next(batches)
        assert held.first == 0, "the first has yet to be copied, and the others are released after it"
        own.run()
        fourth = next(batches)
        assert held.first == 2
        fake.synchronize()
        seen = np.concatenate([np.asarray(batch["id"]) for batch in (first, second, third, fourth)])
        assert len(set(seen.tolist())) == 40 and set(seen.tolist()) <= set(range(SAMPLES))


@pytest.mark.parametrize("seed", range(3))
def test_chosen_samples_strings_and_ragged_rows_come_out_of_a_gpus_ring(serve: Any, seed: int) -> None:
    names = [f"name {i}" for i in range(60)]
    values = [np.arange(i % 5) + i for i in range(60)]
    batches = [
        {
            "id": np.arange(start, start + 10),
            "name": names[start : start + 10],
            "long": penstock.RaggedRows.of(values[start : start + 10]),
        }
        for start in range(0, 60, 10)
    ]
    serve(batches, memory=FakeGpu(5), window="8KiB")
    with penstock.attach("feed", 7, device=FakeGpu(seed)) as loader:
        for _ in range(2):
            seen = 0
            for batch in loader:
                for row, i in enumerate(batch["id"].tolist()):
                    assert batch["name"][row] == names[i]
                    assert batch["long"][row].tolist() == values[i].tolist()
                    seen += 1
            assert seen == 60


@pytest.mark.parametrize("memory", ["host", FakeGpu(5)], ids=["host", "gpu"])
def test_chosen_samples_are_gathered(serve: Any, memory: Any) -> None:
    chosen = np.random.default_rng(0).permutation(SAMPLES)[:90]
    serve(rows(), memory=memory, window="8KiB", epochs=1)
    with (
        ThreadPoolExecutor() as threads,
        penstock.attach("feed", 8, device=FakeGpu(1), select=chosen) as few,
        penstock.attach("feed", 10, device=FakeGpu(2)) as all_of_them,
    ):
        some, whole = threads.map(ids_of, (few, all_of_them))
        assert (sorted(some), sorted(whole)) == (sorted(chosen.tolist()), list(range(SAMPLES)))


@pytest.mark.parametrize("memory", ["host", FakeGpu(5)], ids=["host", "gpu"])
def test_chosen_samples_come_by_one_call_a_batch(serve: Any, monkeypatch: Any, memory: Any) -> None:
    fake = installed(monkeypatch, FakeCuda())
    chosen = np.random.default_rng(0).permutation(SAMPLES)[:90]
    serve(rows(), memory=memory, epochs=1, expect=2)
    seen: list[int] = []
    with (
        ThreadPoolExecutor() as threads,
        penstock.attach("feed", device=CudaGpu("cuda"), select=chosen) as loader,
        penstock.attach("feed") as of_all,  # else the others would not be loaded, and there were none to leave out
    ):
        whole, builder = threads.submit(ids_of_host, of_all), BatchBuilder._copy
        gathered = 0

        def copied(self: BatchBuilder, i: int, leaf: Any, block: Any, picked: Any, rows: int, to: int) -> None:
            nonlocal gathered
            gathered += not isinstance(picked, slice)
            builder(self, i, leaf, block, picked, rows, to)

        monkeypatch.setattr(BatchBuilder, "_copy", copied)
        for batch in loader:
            fake.synchronize()
            ids = np.asarray(batch["id"])
            assert (np.asarray(batch["bytes"]) == (ids % 251).astype(np.uint8)[:, None]).all()
            seen += ids.tolist()
        assert sorted(whole.result()) == list(range(SAMPLES))
    assert sorted(seen) == sorted(chosen.tolist())
    assert fake.calls["batches of copies" if memory == "host" else "kernels"] == gathered > 0
    assert fake.calls["kernels" if memory == "host" else "batches of copies"] == 0


def test_a_call_that_was_broken_off_may_be_repeated_on_another_stream(serve: Any, monkeypatch: Any) -> None:
    fake = installed(monkeypatch, FakeCuda())
    serve(rows(), memory=FakeGpu(5), window="8KiB")
    own = fake.torch.cuda.Stream()
    with penstock.attach("feed", 15, device=CudaGpu("cuda")) as loader:  # of blocks of 10
        batches, held = iter(loader), loader._rows.connection.held
        verify, calls = loader._rows.verify, []

        def break_off() -> None:
            calls.append(1)
            if len(calls) == 2:
                raise KeyboardInterrupt
            verify()

        with fake.torch.cuda.stream(own):
            monkeypatch.setattr(loader._rows, "verify", break_off)
            with pytest.raises(KeyboardInterrupt):
                next(batches)
        first = next(batches)
        wanted = loader.ids
        fake.computing.run()  # as the trainer's kernels do that read the batch
        assert wanted is not None and np.asarray(first["id"]).tolist() == wanted.tolist()
        assert own.done == len(own.work), "the default stream has waited for what the other one copies"
        assert held.first <= 2


def test_a_gpu_that_lagged_once_holds_no_more_of_the_window_than_before(serve: Any) -> None:
    gpu = Lagging(1)
    gpu.lag_s = 0.0
    feeder = serve(rows(), memory=FakeGpu(5), window="64KiB", prefetch=16)
    with penstock.attach("feed", 10, device=gpu) as loader:
        batches, destination = iter(loader), loader._rows.destination
        next(batches)
        eventually(lambda: feeder.statistics().blocks >= 15)  # who has to wait, waits for copies, too
        gpu.lag_s = 3600.0
        for _ in range(6):
            next(batches)
        assert len(destination._to_release) >= 6
        for late, _, _ in destination._to_release:
            late._passes_s = 0.0
        gpu.lag_s = 0.0
        gpu._current.run(gpu._current.begun)
        next(batches)
        assert len(destination._to_release) == 1


@pytest.mark.parametrize("first", ["host", "gpu"])
def test_a_batch_may_be_put_together_from_a_ring_on_the_host_and_one_on_the_gpu(first: str) -> None:
    gpu, feeders, data = FakeGpu(1), FakeGpu(5), np.arange(64, dtype=np.uint8)
    to = OnGpu(gpu)
    there = to._gpu.empty(0)
    for kind in (first, "gpu" if first == "host" else "host"):
        written = WritableDeviceRing(feeders, PAGE_BYTES)
        written.write(0, data)
        written.flush()
        rings = [written, written.twin] if kind == "gpu" else [written.twin]
        fds = [ring.open_for_readers() for ring in rings]
        settings = SimpleNamespace(window_bytes=PAGE_BYTES, stall_timeout=None)
        welcome: Any = SimpleNamespace(settings=settings, rings=[ring.kind for ring in rings])
        ring = to.open_ring(welcome, fds)
        for fd in fds:
            os.close(fd)
        with to.copying():
            there = to.take(64) if not to._taken else there
            half = slice(0, 32) if kind == first else slice(32, 64)
            to.copy(there[half], ring.readable(half.start, 32))
        if kind != first:
            to.seal().ready()
            assert there.tolist() == data.tolist()
        to.leave()  # for a failover, amid the batch, and at its end
        ring.close()
        written.close()
