"""A ring on a GPU, its twin on the host, and transforms; each trainer reads what it can. The GPU is a fake."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.fakes.gpu import FakeGpu
from tests.faults.conftest import descriptors, ring_maps
from tests.feed.numbered import ROW_BYTES, SAMPLES, ids_of, ids_of_host, rows
from tests.sources.drawing import assert_identical
from torch.utils.data import DataLoader, TensorDataset

import penstock

SIZES = [(None, True), (1, False), (7, True), (64, False), (500, True)]


@pytest.mark.parametrize(("batch_size", "pins"), SIZES)
def test_a_ring_on_the_gpu_takes_each_block_once_whatever_the_trainers(serve, batch_size, pins):
    feeders = FakeGpu(5, pins=pins)
    feeder = serve(rows(), memory=feeders, window="8KiB", epochs=1)
    with (
        ThreadPoolExecutor() as threads,
        penstock.attach("feed", batch_size, device=FakeGpu(1)) as one,
        penstock.attach("feed", 9, device=FakeGpu(2)) as other,
    ):
        for seen in threads.map(ids_of, (one, other)):
            assert sorted(seen) == list(range(SAMPLES))
        assert one.statistics().handed == "copy on fake:0, on the trainer's stream"
        assert one.statistics().sharing == "ring on GPU-00000000-fake"
    sent = feeder.statistics()
    assert feeders.copied_bytes == sent.samples * (ROW_BYTES + 8), "host-to-device bytes are those of the blocks"


def test_views_on_a_gpu_hold_their_blocks_until_they_die(serve: Any) -> None:
    feeder = serve(rows(), memory=FakeGpu(5), window="8KiB")
    with penstock.attach("feed", 10, device=FakeGpu(1), borrow=True) as loader:
        assert sorted(ids_of(loader)) == list(range(SAMPLES))
        kept = next(iter(loader))
        assert loader.statistics().viewed_bytes > 0
        wanted = kept["id"].tolist()
        for _ in range(3):
            ids_of(loader, most=5)
        assert kept["id"].tolist() == wanted
    assert (kept["bytes"] == (kept["id"] % 251).to(torch.uint8)[:, None]).all()
    assert feeder.statistics().trainers, "it stays for its view"
    del kept


UNREACHED = "the feed's ring on GPU-00000000-fake cannot be mapped: it is another GPU's memory, and this is a test"


@pytest.mark.parametrize(("batch_size", "pins"), SIZES)
def test_a_trainer_that_cannot_map_the_ring_trains_from_its_twin_and_says_so(serve, batch_size, pins):
    feeders, trainers = FakeGpu(5), FakeGpu(1, reaches=False, pins=pins)
    serve(rows(), memory=feeders, window="8KiB")
    with penstock.attach("feed", batch_size, device=trainers) as loader:
        for _ in range(2):
            assert sorted(ids_of(loader)) == list(range(SAMPLES))
        statistics = loader.statistics()
    assert statistics.sharing == "host twin of the ring on GPU-00000000-fake"
    how = "from the pinned ring (" if pins else "by way of a buffer (fake:0 cannot register "
    assert statistics.handed.startswith(f"copy on fake:0 {how}")
    assert statistics.handed.endswith(f"{UNREACHED})")
    assert not trainers.pinned


@pytest.mark.parametrize("pins", [True, False])
def test_trainers_on_the_host_and_on_gpus_that_reach_the_ring_or_not_share_a_small_window(serve, pins):
    feeders = FakeGpu(5, pins=pins)
    feeder = serve(rows(), memory=feeders, window="8KiB", epochs=1)
    with (
        ThreadPoolExecutor() as threads,
        penstock.attach("feed", 16, device=FakeGpu(1)) as on_it,
        penstock.attach("feed", 7, device=FakeGpu(2, reaches=False)) as elsewhere,
        penstock.attach("feed", 3) as on_host,
        penstock.attach("feed", 10, borrow=True) as views,
    ):
        on_gpus, on_hosts = threads.map(ids_of, (on_it, elsewhere)), threads.map(ids_of_host, (on_host, views))
        for seen in (*on_gpus, *on_hosts):
            assert sorted(seen) == list(range(SAMPLES))
        assert on_it.statistics().sharing == "ring on GPU-00000000-fake"
        for loader in (elsewhere, on_host, views):
            assert loader.statistics().sharing == "host twin of the ring on GPU-00000000-fake"
        assert views.statistics().viewed_bytes > 0
    sent = feeder.statistics()
    assert feeders.copied_bytes == sent.samples * (ROW_BYTES + 8), "each block goes to the GPU once"
    how = "copied from its pinned twin" if pins else "by way of a buffer (fake:0 cannot register"
    assert how in sent.sharing


def test_what_a_loaders_workers_write_is_right_in_the_ring_and_in_its_twin(serve: Any) -> None:
    data = TensorDataset(torch.arange(200), torch.arange(200).to(torch.uint8)[:, None].expand(-1, 50))
    feeder = serve(
        DataLoader(data, batch_size=8, shuffle=True, num_workers=2), memory=FakeGpu(5), window="64KiB", epochs=2
    )

    def loop(loader: penstock.Loader) -> None:
        for _ in range(2):
            seen: list[int] = []
            for ids, payload in loader:
                assert (payload == ids.to(torch.uint8)[:, None]).all()
                seen += ids.tolist()
            assert sorted(seen) == list(range(200))

    with (
        ThreadPoolExecutor() as threads,
        penstock.attach("feed", 12, device=FakeGpu(1)) as on_it,
        penstock.attach("feed", device=FakeGpu(2, reaches=False)) as elsewhere,
        penstock.attach("feed", 5) as on_host,
    ):
        list(threads.map(loop, (on_it, elsewhere, on_host)))
        statistics = feeder.statistics()
    assert 1 <= statistics.blocks - statistics.blocks_in_place <= 2 * 2 + 1


def test_views_of_a_ring_that_cannot_be_mapped_are_an_error_that_says_what_to_do(serve: Any) -> None:
    serve(rows(), memory=FakeGpu(), window="64KiB")
    with pytest.raises(penstock.errors.DeviceUnavailable, match=rf"borrow=True.*{UNREACHED}.*Leave borrow out"):
        penstock.attach("feed", device=FakeGpu(reaches=False), borrow=True)
    assert not penstock.feeds()[0].trainers


@pytest.mark.parametrize(
    ("memory", "reaches"), [("host", True), (FakeGpu(5), False), (FakeGpu(5), True)], ids=["host", "twin", "gpu"]
)
def test_a_trainer_that_is_evicted_hands_out_nothing_that_was_overwritten(serve, memory, reaches):
    serve(rows(1000), memory=memory, window="8KiB", stall_timeout=0.3)
    with (
        penstock.attach("feed", 10, device=FakeGpu(2, reaches=reaches)) as slow,
        penstock.attach("feed", 10, device=FakeGpu(3)) as fast,
    ):
        batches = iter(slow)
        next(batches)
        assert len(ids_of(fast)) == 1000, "it waits for the slow one, then goes on without it"
        with pytest.raises(penstock.errors.TrainerEvicted):
            ids_of(batches)


@pytest.mark.usefixtures("forks_feeders_with_torch")
def test_a_feeder_that_dies_is_replaced_whichever_gpu_its_trainers_copy_to() -> None:
    """The same of a ring on a GPU: tests/faults/test_gpu.py."""
    gpus = [FakeGpu(1), FakeGpu(2, reaches=False), None]
    make = partial(rows, 1000)

    def loop(loader: penstock.Loader) -> list[int]:
        seen: list[int] = []
        with loader:  # one that has had its epoch, and stays, would hold back those that began later
            for i, batch in enumerate(loader):
                assert (torch.as_tensor(batch["bytes"])[:, 0] == torch.as_tensor(batch["id"]) % 251).all()
                seen += batch["id"].tolist()
                if i == 20 and loader is loaders[0]:
                    os.kill(loader.statistics().feeder_pid, signal.SIGKILL)
            assert loader.statistics().failovers == 1
            if gpu := gpus[loaders.index(loader)]:
                assert len(gpu.pinned) == 1, "that of the feeder that died is given back"
        return seen

    with ThreadPoolExecutor() as threads, ExitStack() as stack:
        loaders = [
            stack.enter_context(penstock.share(make, "failover", 10, device=gpu, linger=1.0, window="8KiB"))
            for gpu in gpus
        ]
        for seen in threads.map(loop, loaders):
            assert sorted(seen) == list(range(1000))
    assert not any(gpu.pinned for gpu in gpus if gpu)


def test_nothing_is_left_of_a_ring_on_a_gpu_and_its_twin() -> None:
    maps, before = ring_maps(), descriptors()
    feeders = FakeGpu()
    feeder = penstock.Feeder(rows(), "feed", memory=feeders, window="1MiB")
    loaders = [penstock.attach("feed", device=gpu) for gpu in (FakeGpu(), FakeGpu(reaches=False), None)]
    assert feeders.pinned
    assert ring_maps() > maps
    for loader in loaders:
        loader.close()
    feeder.close()
    assert not feeders.pinned
    del feeder, feeders, loader, loaders
    assert ring_maps() == maps
    assert descriptors() == before


def test_a_window_that_the_gpu_has_no_room_for_leaves_nothing_behind() -> None:
    with pytest.raises(penstock.errors.DeviceUnavailable, match="are free"):
        penstock.Feeder(rows(), "feed", memory=FakeGpu(memory_bytes=4096), window="1MiB")
    assert penstock.feeds() == []


@pytest.mark.usefixtures("forks_feeders_with_torch")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_ring_on_a_gpu_that_is_not_there_is_an_error_under_share_too() -> None:
    with pytest.raises(penstock.errors.DeviceUnavailable, match=r"device='cuda:0'.*CUDA|no GPU that works"):
        penstock.share(rows, "feed", memory="cuda:0")
    assert penstock.feeds() == []


@pytest.mark.usefixtures("forks_feeders_with_torch")
def test_who_asks_for_another_memory_is_told_so(serve: Any) -> None:
    serve(rows(), memory=FakeGpu(), window="64KiB")
    with pytest.raises(penstock.errors.SettingsDiffer, match="memory='fake:0' where you asked for 'host'"):
        penstock.share(rows, "feed", memory="host", device=FakeGpu())


def halves(batch: Any) -> Any:
    """Smaller than what it was given, as an encoder's output is."""
    assert all(isinstance(leaf, torch.Tensor) for leaf in batch.values())
    return {"id": batch["id"], "half": batch["bytes"][:, 0].to(torch.float32) / 2}


def ids_of_halves(loader: penstock.Loader) -> list[int]:
    """The samples of an epoch, each with what the transform makes of it."""
    seen: list[int] = []
    for batch in loader:
        assert (batch["half"] == (batch["id"] % 251) / 2).all()
        seen += batch["id"].tolist()
    return seen


@pytest.mark.parametrize("pins", [True, False])
def test_it_is_called_once_a_block_however_many_trainers(serve: Any, pins: bool) -> None:
    calls: list[int] = []

    def counted(batch: Any) -> Any:
        calls.append(len(batch["id"]))
        return halves(batch)

    feeders = FakeGpu(3, pins=pins)
    feeder = serve(rows(), memory=feeders, transform=counted, window="8KiB", epochs=1)
    with (
        ThreadPoolExecutor() as threads,
        penstock.attach("feed", 16, device=FakeGpu(1)) as on_it,
        penstock.attach("feed", 7, device=FakeGpu(2, reaches=False)) as elsewhere,
        penstock.attach("feed", 10) as on_host,
    ):
        for seen in threads.map(ids_of_halves, (on_it, elsewhere, on_host)):
            assert sorted(seen) == list(range(SAMPLES))
    sent = feeder.statistics()
    assert sent.blocks <= len(calls) <= sent.blocks + sent.reopened + 1, "a pass that is broken off leaves one"
    assert feeders.copied_bytes == sum(calls) * (ROW_BYTES + 8), "what came crossed once, what was made not at all"
    assert sent.bytes == sent.samples * (4 + 8)


def test_what_it_returns_may_lie_on_the_device_or_on_the_host(serve: Any) -> None:
    batch = {"x": torch.arange(6), "n": np.arange(6.0), "names": list("abcdef"), "of": "the block"}

    def mixed(block: Any) -> Any:
        assert block["names"] == list("abcdef")
        return {
            "x": block["x"].to(torch.bfloat16) + 1,
            "n": block["n"].numpy() * 2,
            "names": [name.upper() for name in block["names"]],
            "of": block["of"],
            "empty": torch.empty(6, 0),
            "turned": torch.arange(12).reshape(2, 6).T,
        }

    serve([batch], memory=FakeGpu(3), transform=mixed, window="64KiB")
    for gpu in (FakeGpu(1), FakeGpu(1, reaches=False), None):
        with penstock.attach("feed", 3, device=gpu) as loader:
            first, second = loader
        assert first["x"].tolist() == [1, 2, 3]
        assert first["x"].dtype == torch.bfloat16
        assert second["n"].tolist() == [6, 8, 10]
        assert second["names"] == ["D", "E", "F"]
        assert second["of"] == "the block"
        assert first["empty"].shape == (3, 0)
        assert second["turned"].tolist() == [[3, 9], [4, 10], [5, 11]]


def test_it_may_write_its_results_into_the_same_memory_each_time(serve: Any) -> None:
    out = torch.empty(10, dtype=torch.float32)

    def again(batch: Any) -> Any:
        n = len(batch["id"])
        torch.div(batch["bytes"][:, 0], 2, out=out[:n])
        return {"id": batch["id"], "half": out[:n]}

    serve(rows(), memory=FakeGpu(3), transform=again, window="8KiB")
    with penstock.attach("feed", 16, device=FakeGpu(1)) as loader:
        assert sorted(ids_of_halves(loader)) == list(range(SAMPLES))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loaders_workers_hand_their_batches_over_as_ever(serve: Any, workers: int) -> None:
    data = TensorDataset(torch.arange(200), torch.arange(200, dtype=torch.float32)[:, None].repeat(1, 50))
    feeder = serve(
        DataLoader(data, batch_size=8, shuffle=True, num_workers=workers),
        memory=FakeGpu(5),
        transform=lambda batch: (batch[0], batch[1].sum(1)),
        window="1MiB",
    )
    with penstock.attach("feed", 12, device=FakeGpu()) as loader:
        seen: list[int] = []
        for ids, sums in loader:
            assert (sums == ids * 50).all()
            seen += ids.tolist()
        assert sorted(seen) == list(range(200))
    assert feeder.statistics().blocks_in_place == 0, "what lies in a slot is not what is fed"


def test_batches_of_varying_shape_are_transformed_whole(serve: Any) -> None:
    batches = [{"x": torch.full((n, n + 1), n)} for n in (3, 1, 7, 2)]
    double = {"transform": lambda batch: batch["x"] * 2}
    serve(batches, memory=FakeGpu(3), **double, whole_batches=True, window="64KiB")
    with penstock.attach("feed", device=FakeGpu()) as loader:
        for got, sent in zip(loader, batches, strict=True):
            assert_identical(got, sent["x"] * 2)


def broken(batch: Any) -> Any:
    raise ValueError("the encoder has no weights")


DAYS = np.array(["2020-01-01", "2021-01-01"], "datetime64[D]")


@pytest.mark.parametrize(
    ("source", "transform", "says"),
    [
        (rows, broken, "ValueError: the encoder has no weights"),
        (rows, lambda batch: {"id": batch["id"][:2]}, "transform, made 2 rows of 10"),
        (rows, lambda batch: {"id": batch["id"].to("meta")}, "a tensor on meta, and the feed's ring is on fake:0"),
        (lambda: [{"when": DAYS}], lambda batch: batch, r"M8\[D\].*of a feed with a transform, memory"),
    ],
)
def test_an_error_in_it_and_what_cannot_be_fed_are_the_sources(serve, source, transform, says):
    serve(source(), memory=FakeGpu(), transform=transform, window="64KiB")
    with (
        penstock.attach("feed", device=FakeGpu()) as loader,
        pytest.raises(penstock.errors.SourceError, match=says),
    ):
        next(iter(loader))


def test_the_fake_copies_nothing_that_is_still_being_computed() -> None:
    gpu = FakeGpu()
    memory, computed = gpu.empty(8), torch.arange(8, dtype=torch.uint8)
    with gpu.beside(), pytest.raises(AssertionError, match="not taken over"):
        gpu.copy_within(memory, computed)
    gpu.wait_for_compute([computed])
    with gpu.beside():
        gpu.copy_within(memory, computed)
    gpu.synchronize()
    assert memory.tolist() == list(range(8))
