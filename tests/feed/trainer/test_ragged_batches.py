"""Rows of different length through a feed: cut exactly, whatever the batch sizes, and given ragged or padded."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.gpu import FakeGpu
from tests.feed.reading import at_once
from torch.utils.data import DataLoader

import penstock
from penstock import ArraySource, RaggedRows
from penstock.feed.trainer import destination
from penstock.feed.trainer.batch_builder import filled

pytestmark = pytest.mark.whole

SAMPLES = 97
numbers = itertools.count()
flat = itertools.chain.from_iterable


def row(i: int) -> np.ndarray:
    """The items of a sample, none of every fifth."""
    return np.arange(i * 7 % 5, dtype=np.int64) + 10 * i


def box(i: int) -> np.ndarray:
    return np.full((i % 3, 2, 2), i, np.float32)


def tree(samples: int = SAMPLES, of: Any = np.asarray) -> Any:
    ids = range(samples)
    boxes = RaggedRows.of([of(box(i)) for i in ids], "padded")
    return {
        "id": np.arange(samples),
        "row": RaggedRows.of([of(row(i)) for i in ids]),
        "box": boxes,
        "k": ["a"] * samples,
    }


def source(samples: int = SAMPLES, batch_size: int = 10, **options: Any) -> ArraySource:
    return ArraySource(tree(samples), batch_size=batch_size, **options)


def ids_of(loader: Iterable[Any], kind: type[Any] = np.ndarray) -> list[list[int]]:
    """The samples of each batch of a loop, each with the rows that it should have."""
    seen: list[list[int]] = []
    for batch in loader:
        ids, rows, boxes = batch["id"].tolist(), batch["row"], batch["box"]
        assert type(rows) is RaggedRows
        assert isinstance(boxes, kind)
        assert isinstance(rows.values, kind)
        assert isinstance(rows.offsets, kind)
        assert len(rows) == len(ids) == len(batch["k"])
        assert [each.tolist() for each in rows] == [row(i).tolist() for i in ids]
        assert tuple(boxes.shape) == (len(ids), max(i % 3 for i in ids), 2, 2)
        assert boxes.tolist() == RaggedRows.of([box(i) for i in ids]).padded().tolist()
        assert str(boxes.dtype).endswith("float32")
        seen.append(ids)
    return seen


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 40), st.integers(1, 30), st.integers(1, 40), st.booleans(), st.booleans())
def test_any_blocks_are_cut_to_any_batches(serve, samples, rows, size, borrow, drop_last):
    name = f"feed {next(numbers)}"
    feeder = serve(source(samples, rows, segments=1 + samples % 3), name, window="64KiB")

    def train(i: int) -> None:
        batch_size = (size, None)[i]
        drops = drop_last and size <= samples and i == 0
        with penstock.attach(name, batch_size, borrow=borrow, drop_last=drops) as loader:
            for _ in range(2):
                batches = ids_of(loader)
                seen = list(flat(batches))
                assert len(set(seen)) == len(seen) == (samples // size * size if drops else samples)
                assert all(len(ids) == (batch_size or rows) for ids in batches[:-1])

    at_once(train, 2)
    feeder.close()


@pytest.mark.parametrize("gpu", [False, True])
def test_selected_samples_come_with_their_own_rows(serve: Any, gpu: bool) -> None:
    serve(source(), window="64KiB", expect=2)  # blocks hold what both select
    chosen = [[3, 4, 5, 6, 40, 90], list(range(0, SAMPLES, 3))]

    def train(i: int) -> None:
        device: Any = {"device": FakeGpu(i)} if gpu else {}
        with penstock.attach("feed", (4, 5)[i], select=chosen[i], **device) as loader:
            for _ in range(2):
                kind = torch.Tensor if gpu else np.ndarray
                assert sorted(flat(ids_of(loader, kind))) == chosen[i]

    at_once(train, 2)


@pytest.mark.parametrize("options", [{"drop_last": True}, {"pad": True}, {}], ids=str)
def test_ranks_part_the_samples(serve: Any, options: Any) -> None:
    serve(source(), window="64KiB")

    def train(rank: int) -> list[list[int]]:
        with penstock.attach("feed", 10, shard=(rank, 3), **options) as loader:
            return ids_of(loader)

    ranks = at_once(train, 3)
    assert len({len(batches) for batches in ranks}) == 1
    seen = [i for batches in ranks for ids in batches for i in ids]
    if "pad" in options:
        assert set(seen) == set(range(SAMPLES))
    else:
        assert len(set(seen)) == len(seen) == (90 if "drop_last" in options else SAMPLES)


@pytest.mark.parametrize("of", [np.array, torch.as_tensor])
def test_a_batch_is_filled_up_with_its_first_rows(of: Any) -> None:
    full = filled(tree(3, of), 8)
    full["box"] = full["box"].padded()
    assert ids_of([full], type(of([0]))) == [[0, 1, 2, 0, 1, 2, 0, 1]]


def test_a_source_read_alone_gives_what_a_feed_gives() -> None:
    class Own(penstock.sources.sharding.Alone):  # type: ignore[name-defined]
        open = ArraySource.open
        plans = ArraySource.plans
        load = ArraySource.load
        close = ArraySource.close
        _rows = ArraySource._rows
        __init__ = ArraySource.__init__

    alone = Own(tree(), batch_size=8)
    assert sorted(flat(ids_of(alone))) == list(range(SAMPLES))
    parts = [Own(tree(), batch_size=8) for _ in range(3)]
    for rank, part in enumerate(parts):
        part.shard = rank, 3
    seen = [i for part in parts for ids in ids_of(part) for i in ids]
    assert sorted(seen) == list(range(SAMPLES))


@pytest.mark.parametrize("borrow", [False, True])
def test_whole_batches_have_as_many_ragged_rows_as_the_source_gives(serve: Any, borrow: bool) -> None:
    batches = [
        {"x": np.zeros((n, n)), "rows": RaggedRows(np.arange(3 * m).reshape(-1, 3), np.arange(m + 1))}
        for n, m in ((2, 4), (3, 0), (1, 1))
    ]
    serve(batches, whole_batches=True, window="64KiB")
    with penstock.attach("feed", borrow=borrow) as loader:
        for _ in range(2):
            for got, sent in zip(loader, batches, strict=True):
                assert got["rows"].values.tolist() == sent["rows"].values.tolist()
                assert got["rows"].offsets.tolist() == sent["rows"].offsets.tolist()


def test_rows_of_torch_are_made_by_a_loaders_workers_and_come_as_torchs(serve: Any) -> None:
    def collate(ids: list[int]) -> Any:
        picked = tree(of=torch.as_tensor)
        picked.update(id=torch.tensor(ids), row=picked["row"][ids], box=picked["box"][ids], k=["a"] * len(ids))
        return picked

    serve(DataLoader(range(SAMPLES), 10, shuffle=True, collate_fn=collate, num_workers=2), window="64KiB")  # type: ignore[arg-type]
    with penstock.attach("feed", 7) as loader:
        for _ in range(2):
            assert sorted(flat(ids_of(loader, torch.Tensor))) == list(range(SAMPLES))


def test_batches_are_private_and_may_be_written_to(serve: Any) -> None:
    serve(source(), window="64KiB")
    for borrow in (False, True):
        with penstock.attach("feed", 5, borrow=borrow) as loader:
            kept = [batch for batch, _ in zip(loader, range(3), strict=False)]
            for batch in kept:
                batch["row"].values[:] = batch["box"][:] = -1
            del batch, kept
            assert sorted(flat(ids_of(loader))) == list(range(SAMPLES))


@pytest.mark.parametrize(
    ("memory", "batch_size", "pins"),
    [("host", 1, True), ("host", 7, False), ("gpu", None, False), ("gpu", 64, True)],
)
def test_on_a_gpu_values_offsets_and_padded_rows_lie_there(serve, memory, batch_size, pins):
    serve(source(), window="64KiB", memory=FakeGpu(9) if memory == "gpu" else "host")
    with penstock.attach("feed", batch_size, device=FakeGpu(3, pins=pins)) as loader:
        for _ in range(2):
            assert sorted(flat(ids_of(loader, torch.Tensor))) == list(range(SAMPLES))


def test_views_on_a_gpu_come_with_copies_of_ragged_rows(serve: Any) -> None:
    serve(source(), window="64KiB", memory=FakeGpu(9))
    with penstock.attach("feed", 10, device=FakeGpu(3), borrow=True) as loader:
        assert sorted(flat(ids_of(loader, torch.Tensor))) == list(range(SAMPLES))
        assert loader.statistics().copied_bytes > 0
        assert loader.statistics().viewed_bytes > 0


def test_a_transform_on_the_feeds_gpu_gets_ragged_rows_as_they_are_and_may_return_them(serve: Any) -> None:
    def transform(batch: Any) -> Any:
        assert isinstance(batch["id"], torch.Tensor)
        assert isinstance(batch["row"].values, np.ndarray)
        rows = RaggedRows(torch.from_numpy(batch["row"].values), batch["row"].offsets)
        return {**batch, "row": rows}

    serve(source(), window="64KiB", memory=FakeGpu(9), transform=transform)
    with penstock.attach("feed", 7, device=FakeGpu(3)) as loader:
        assert sorted(flat(ids_of(loader, torch.Tensor))) == list(range(SAMPLES))


@pytest.mark.parametrize(("framework", "kind"), [("torch", torch.Tensor), ("numpy", np.ndarray)])
def test_a_framework_gets_its_own_arrays_on_the_same_memory(serve: Any, framework: Any, kind: Any) -> None:
    of = np.asarray if framework == "torch" else torch.as_tensor
    serve(ArraySource(tree(of=of), batch_size=10), window="64KiB")
    with penstock.attach("feed", 7, framework=framework) as loader:
        assert sorted(flat(ids_of(loader, kind))) == list(range(SAMPLES))


def test_pinned_batches_have_all_their_parts_pinned(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def allocate(nbytes: int) -> torch.Tensor:
        memory = torch.empty(nbytes, dtype=torch.uint8)
        taken.append(memory.data_ptr())
        return memory

    monkeypatch.setattr(
        "penstock.feed.trainer.options.on_host", lambda *, pinned: destination.OnPinnedHost(allocate)
    )
    serve(ArraySource(tree(of=torch.as_tensor), batch_size=10), window="64KiB")
    with penstock.attach("feed", 7, pin_memory=True) as loader:
        for batch in loader:
            parts = batch["row"].values, batch["row"].offsets, batch["box"]
            assert all(part.data_ptr() in taken for part in parts if part.numel())
        assert sorted(flat(ids_of(loader, torch.Tensor))) == list(range(SAMPLES))


def test_a_state_brings_back_the_very_next_rows(serve: Any) -> None:
    serve(source(), window="64KiB")
    with penstock.attach("feed", 6) as loader:
        batches = iter(loader)
        seen = [next(batches)["id"].tolist() for _ in range(5)]
        state = loader.state_dict()
    with penstock.attach("feed", 9) as loader:
        loader.load_state_dict(state)
        assert sorted(flat(seen + ids_of(loader))) == list(range(SAMPLES))


def test_ragged_rows_alone_are_a_source_of_their_rows(serve: Any) -> None:
    serve(tree()["row"], window="64KiB")
    with penstock.attach("feed", 7) as loader:
        assert sorted(each.tolist() for rows in loader for each in rows) == sorted(
            row(i).tolist() for i in range(SAMPLES)
        )


def test_blocks_that_change_between_ragged_and_padded_are_an_error(serve: Any) -> None:
    serve([{"x": RaggedRows(np.arange(3), [0, 1, 3], give)} for give in ("ragged", "padded")])  # type: ignore[arg-type]
    with penstock.attach("feed") as loader, pytest.raises(penstock.errors.SourceError, match="given padded"):
        list(loader)


def test_packing_refuses_them_by_name(tmp_path: Any) -> None:
    with pytest.raises(penstock.errors.UnsupportedLeaf, match=r"leaf batch\['row'\] is of ragged rows.*padded"):
        penstock.pack(source(), tmp_path / "packed")
