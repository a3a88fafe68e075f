"""Batches that end on a GPU: here a fake that carries copies out late, and poisons what is read too early."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.fakes.gpu import FakeGpu
from tests.feed.numbered import ROW_BYTES, SAMPLES, ids_of, ids_of_host, rows
from tests.sources.drawing import assert_identical
from torch.utils.data import DataLoader, TensorDataset

import penstock


@pytest.mark.parametrize(
    ("batch_size", "pins"), [(None, False), (1, True), (7, False), (10, True), (64, False), (500, True)]
)
def test_an_epoch_is_every_sample_once_whatever_the_batch_size(serve: Any, batch_size: int, pins: bool) -> None:
    serve(rows(), window="8KiB")
    for seed in range(2):
        gpu = FakeGpu(seed, pins=pins)
        with penstock.attach("feed", batch_size, device=gpu) as loader:
            for _ in range(2):
                assert sorted(ids_of(loader)) == list(range(SAMPLES))
            assert gpu.pinned if pins else not gpu.pinned
            how = "from the pinned ring" if pins else "by way of a buffer (fake:0 cannot register "
            assert loader.statistics().handed.startswith(f"copy on fake:0 {how}")
        assert not gpu.pinned, "what was registered is given back"
        assert gpu.copied_bytes == 2 * SAMPLES * (ROW_BYTES + 8), "each byte crosses once"


def test_no_more_than_one_batch_is_copied_ahead(serve: Any) -> None:
    serve(rows())
    gpu = FakeGpu()
    with penstock.attach("feed", 10, device=gpu) as loader:
        for i, _ in enumerate(iter(loader), 1):
            assert gpu.copied_bytes <= (i + 1) * 10 * (ROW_BYTES + 8)
    assert gpu.most_under_way > 2, "something was copied ahead"


def test_a_state_knows_nothing_of_what_was_copied_ahead(serve: Any) -> None:
    serve(rows())
    for taken in (1, 2, 13, 20):
        with penstock.attach("feed", 10, device=FakeGpu(taken)) as loader:
            batches = iter(loader)
            seen = [i for _ in range(taken) for i in next(batches)["id"].tolist()]
            state = loader.state_dict()
        with penstock.attach("feed", 10, device=FakeGpu(taken)) as loader:
            loader.load_state_dict(state)
            assert sorted(seen + ids_of(loader)) == list(range(SAMPLES))


def test_a_loop_that_is_broken_off_is_followed_by_a_whole_epoch(serve: Any) -> None:
    serve(rows())
    with penstock.attach("feed", 10, device=FakeGpu()) as loader:
        ids_of(loader, most=3)
        assert sorted(ids_of(loader)) == list(range(SAMPLES))


@pytest.mark.parametrize("pins", [True, False])
def test_batches_of_varying_shape_and_strings_come_as_they_are(serve: Any, pins: bool) -> None:
    batches = [
        {"x": torch.full((n, n + 1), n, dtype=torch.bfloat16), "names": [f"{i}" for i in range(n)], "n": n}
        for n in (3, 1, 7, 2)
    ]
    serve(batches, whole_batches=True)
    with penstock.attach("feed", device=FakeGpu(pins=pins)) as loader:
        for _ in range(3):
            for got, sent in zip(loader, batches, strict=True):
                assert_identical(got, sent)


def test_types_and_structure_are_those_of_the_source(serve: Any) -> None:
    batch = {
        "half": torch.arange(12, dtype=torch.float16).reshape(4, 3),
        "flags": np.array([True, False, True, True]),
        "nested": (torch.arange(4), [np.arange(8.0).reshape(4, 2), "constant"]),
        "empty": torch.empty(4, 0),
        "files": ["a", "b", "c", "d"],
    }
    serve([batch])
    with penstock.attach("feed", 2, device=FakeGpu()) as loader:
        first, second = loader
    assert_identical(torch.cat([first["half"], second["half"]]), batch["half"])
    assert torch.cat([first["flags"], second["flags"]]).tolist() == batch["flags"].tolist()
    assert first["nested"][0].tolist() == [0, 1]
    assert second["nested"][1][0].tolist() == [[4.0, 5.0], [6.0, 7.0]]
    assert first["nested"][1][1] == "constant"
    assert first["empty"].shape == (2, 0)
    assert second["files"] == ["c", "d"]


def test_what_no_tensor_can_hold_is_an_error(serve: Any) -> None:
    serve([{"when": np.array(["2020-01-01", "2021-01-01"], "datetime64[D]")}])
    says = r"M8\[D\].*leave device .*out"
    with (
        penstock.attach("feed", device=FakeGpu()) as loader,
        pytest.raises(penstock.errors.UnsupportedLeaf, match=says),
    ):
        next(iter(loader))


def test_memory_that_a_gpu_has_not_is_its_own_error_and_the_others_go_on(serve: Any) -> None:
    serve(rows(), window="8KiB")
    with penstock.attach("feed", 64, device=FakeGpu(memory_bytes=1000)) as poor, penstock.attach("feed") as other:
        with pytest.raises(torch.OutOfMemoryError):
            next(iter(poor))
        poor.close()
        assert sorted(ids_of_host(other)) == list(range(SAMPLES))


def test_a_transform_sees_batches_on_the_device(serve: Any) -> None:
    serve(DataLoader(TensorDataset(torch.arange(40)), batch_size=8))
    with penstock.attach("feed", device=FakeGpu(), transform=lambda batch: batch[0] * 2) as loader:
        assert sorted(int(i) for batch in loader for i in batch) == list(range(0, 80, 2))


def test_views_on_a_gpu_are_refused(serve: Any) -> None:
    serve(rows())
    with pytest.raises(penstock.errors.BadSetting, match="Leave borrow out"):
        penstock.attach("feed", borrow=True, device=FakeGpu())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("device", ["cuda", "cuda:7", "GPU-12345678", "tpu"])
def test_a_device_that_is_not_there_is_an_error_that_says_why(serve: Any, device: str) -> None:
    serve(rows())
    with pytest.raises(penstock.errors.DeviceUnavailable, match=f"device='{device}'.*CUDA|no GPU that works"):
        penstock.attach("feed", device=device)
    assert not penstock.feeds()[0].trainers, "it never joined"


def test_the_fake_reads_pinned_memory_when_the_copy_is_carried_out() -> None:
    gpu = FakeGpu()
    memory = np.arange(10, dtype=np.uint8)
    gpu.pin(memory)
    with gpu.beside():
        to = gpu.empty(10)
        gpu.copy(to, memory, pinned=True)
    assert to.tolist() == [0xDB] * 10, "not before the mark"
    mark = gpu.mark()
    memory[:] = 7
    gpu.wait_for_copies([to], mark)
    assert to.tolist() == [7] * 10, "what lay there when the copy was carried out"
    assert mark.passed()
    gpu.unpin(memory)
