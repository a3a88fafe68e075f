"""A feed's transform where its ring is on a GPU: on tensors there, once for all trainers; the GPU is a fake."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from tests.fakes.gpu import FakeGpu
from tests.feed.numbered import ROW_BYTES, SAMPLES, rows
from torch.utils.data import DataLoader, TensorDataset

import penstock


def halves(batch: Any) -> Any:
    """Smaller than what it was given, as an encoder's output is."""
    assert all(isinstance(leaf, torch.Tensor) for leaf in batch.values())
    return {"id": batch["id"], "half": batch["bytes"][:, 0].to(torch.float32) / 2}


def ids_of(loader: penstock.Loader) -> list[int]:
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
        for seen in threads.map(ids_of, (on_it, elsewhere, on_host)):
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

    serve([batch], memory=FakeGpu(3), transform=mixed)
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
        assert sorted(ids_of(loader)) == list(range(SAMPLES))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loaders_workers_hand_their_batches_over_as_ever(serve: Any, workers: int) -> None:
    data = TensorDataset(torch.arange(200), torch.arange(200, dtype=torch.float32)[:, None].repeat(1, 50))
    feeder = serve(
        DataLoader(data, batch_size=8, shuffle=True, num_workers=workers),
        memory=FakeGpu(5),
        transform=lambda batch: (batch[0], batch[1].sum(1)),
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
    serve(batches, memory=FakeGpu(3), transform=lambda batch: batch["x"] * 2, whole_batches=True)
    with penstock.attach("feed", device=FakeGpu()) as loader:
        for got, sent in zip(loader, batches, strict=True):
            torch.testing.assert_close(got, sent["x"] * 2)


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
def test_an_error_in_it_and_what_cannot_be_fed_are_the_sources(
    serve: Any, source: Any, transform: Any, says: str
) -> None:
    serve(source(), memory=FakeGpu(), transform=transform)
    with penstock.attach("feed", device=FakeGpu()) as loader, pytest.raises(penstock.SourceError, match=says):
        next(iter(loader))


def test_the_fake_copies_nothing_that_is_still_being_computed() -> None:
    gpu = FakeGpu()
    memory, computed = gpu.empty(8), torch.arange(8, dtype=torch.uint8)
    with pytest.raises(AssertionError, match="not taken over"):
        gpu.copy_within(memory, computed)
    gpu.wait_for_compute([computed])
    gpu.copy_within(memory, computed)
    gpu.synchronize()
    assert memory.tolist() == list(range(8))
