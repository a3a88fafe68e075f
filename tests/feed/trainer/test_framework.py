"""Batches as another framework's arrays, on the same memory; and in pinned memory, without a GPU in none."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.fakes.gpu import FakeGpu
from tests.scripts import run_python

import penstock
from penstock.feed.trainer import destination

BATCH = {"t": torch.arange(6.0).reshape(3, 2), "n": np.arange(3), "names": ["a", "b", "c"], "k": 5}


def one(framework: Any, **options: Any) -> Any:
    with penstock.attach("feed", framework=framework, **options) as loader:
        return next(iter(loader))


@pytest.mark.parametrize(("framework", "kind"), [("torch", torch.Tensor), ("numpy", np.ndarray)])
def test_arrays_of_either_kind_come_as_the_frameworks(serve: Any, framework: str, kind: type) -> None:
    serve([BATCH])
    batch = one(framework)
    assert isinstance(batch["t"], kind) and isinstance(batch["n"], kind)
    assert (batch["t"].tolist(), batch["n"].tolist()) == ([[0, 1], [2, 3], [4, 5]], [0, 1, 2])
    assert (batch["names"], batch["k"]) == (["a", "b", "c"], 5)
    batch["n"][0] = 7  # it is the trainer's own


needs_jax = pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="JAX is not installed")
JAX_TRAINER = Path(__file__).with_name("jax_trainer.py")


def trained_with_jax(*checks: str) -> None:
    """Have a process of its own, where JAX is, attach to the feeds of these names and check what it gets."""
    done = run_python(JAX_TRAINER, *checks)
    assert done.returncode == 0, done.stderr


@pytest.mark.whole
@needs_jax
def test_jax_gets_the_values_and_types_that_it_has_and_memory_that_it_shares_is_not_used_again(serve: Any) -> None:
    names = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "float32", "complex64"]
    arrays = {name: np.arange(12).reshape(4, 3).astype(name) for name in names}
    others = {"bfloat16": torch.arange(4, dtype=torch.bfloat16), "names": ["a", "b", "c", "d"], "k": 5}
    serve([{"arrays": arrays, **others}], "types")
    rows = [np.arange(n, dtype=np.float32) for n in (2, 0, 3)]
    both: Any = {give: penstock.RaggedRows.of(rows, give) for give in ("ragged", "padded")}
    serve([both], "ragged")
    serve([{"n": np.arange(3), "t": torch.zeros(3, dtype=torch.float64)}] * 2, "wide_types")
    trained_with_jax("types", "ragged", "recycled", "wide_types")


@pytest.mark.whole
@needs_jax
def test_what_jax_keeps_stays_right_while_the_feed_goes_on(serve: Any) -> None:
    ids = np.arange(3000, dtype=np.int32)
    x = np.repeat(ids[:, None], 1500, 1).astype(np.float32)
    checks = ["private_copies", "views", "donated"]
    for name in checks:
        serve(penstock.ArraySource({"id": ids, "x": x}, batch_size=192, segments=4), name, window="10MiB")
    trained_with_jax(*checks)


def test_a_view_stays_a_view(serve: Any) -> None:
    serve([{"t": torch.arange(6)}])
    with penstock.attach("feed", framework="numpy", borrow=True) as loader:
        batch = next(iter(loader))
        assert loader.statistics().viewed_bytes == 48
        assert batch["t"].tolist() == list(range(6))


@pytest.mark.whole
@needs_jax
def test_views_on_a_gpu_are_not_given_to_a_framework_whose_streams_are_unknown(serve: Any) -> None:
    serve([{"t": torch.arange(6)}], memory=FakeGpu(), window="64KiB")
    with pytest.raises(penstock.errors.BadSetting, match=r"on which streams jax reads a view.*Leave borrow out"):
        penstock.attach("feed", framework="jax", borrow=True, device=FakeGpu())


@pytest.mark.whole
@needs_jax
def test_views_on_a_rank_s_processor_are_given_to_jax(serve: Any) -> None:
    serve([{"t": torch.arange(6)}])
    penstock.attach("feed", framework="jax", borrow=True, device="cpu:0").close()


def test_a_type_that_the_framework_has_not_is_an_error_that_names_it(serve: Any) -> None:
    serve([{"t": torch.ones(2, dtype=torch.bfloat16)}])
    with pytest.raises(penstock.errors.UnsupportedLeaf, match=r"bfloat16.*numpy"):
        one("numpy")


@pytest.mark.parametrize(("name", "says"), [("tensorflow", "it must be one of torch"), ("cupy", "not installed")])
def test_a_framework_that_cannot_be_had_is_an_error(serve: Any, name: Any, says: str) -> None:
    serve([BATCH])
    with pytest.raises(penstock.errors.BadSetting, match=says):
        one(name)


def test_a_feeds_transform_runs_once_for_all(serve: Any) -> None:
    calls: list[int] = []

    def transform(batch: Any) -> Any:
        calls.append(len(batch["n"]))
        return {"doubled": batch["n"] * 2}

    serve([BATCH, BATCH], transform=transform, window="1MiB")
    with penstock.attach("feed") as first, penstock.attach("feed", 2) as second:
        assert [batch["doubled"].tolist() for batch in first] == [[0, 2, 4], [0, 2, 4]]
        assert [i for batch in second for i in batch["doubled"].tolist()] == [0, 2, 4, 0, 2, 4]


@pytest.fixture
def taken(monkeypatch) -> list[torch.Tensor]:
    """Loaders that pin whether or not there is a GPU; and the memory that they allocate, which is not pinned."""
    memory: list[torch.Tensor] = []

    def allocate(nbytes: int) -> torch.Tensor:
        memory.append(torch.empty(nbytes, dtype=torch.uint8))
        return memory[-1]

    monkeypatch.setattr(
        "penstock.feed.trainer.options.on_host",
        lambda *, pinned: destination.OnPinnedHost(allocate) if pinned else destination.OnHost(),
    )
    return memory


def lies_in(leaf: Any, taken: list[torch.Tensor]) -> bool:
    start = leaf.data_ptr() if isinstance(leaf, torch.Tensor) else leaf.ctypes.data
    return any(start == memory.data_ptr() for memory in taken)


@pytest.mark.parametrize("whole", [False, True])
def test_each_leaf_lies_at_the_beginning_of_memory_that_torch_allocated(serve, taken, whole):
    """Torch finds pinned memory again by its beginning, when it is copied from."""
    rows = np.arange(20)
    tree = {"id": rows, "x": torch.arange(60, dtype=torch.bfloat16).view(20, 3), "none": torch.zeros(20, 0)}
    serve([{**tree, "name": [f"row {i}" for i in rows]}], whole_batches=whole)
    with penstock.attach("feed", None if whole else 8, pin_memory=True) as loader:
        assert loader.statistics().handed == "pinned private copy"
        batches = list(loader)
    assert [len(batch["id"]) for batch in batches] == ([20] if whole else [8, 8, 4])
    seen = 0
    for batch in batches:
        stop = seen + len(batch["id"])
        assert batch["id"].tolist() == rows[seen:stop].tolist()
        assert torch.equal(batch["x"], tree["x"][seen:stop])
        assert batch["none"].shape == (stop - seen, 0)
        assert batch["name"] == [f"row {i}" for i in rows[seen:stop]]
        assert lies_in(batch["x"], taken)
        assert lies_in(batch["id"], taken)
        batch["id"][:] = 0
        seen = stop


def test_a_view_is_no_copy_whatever_is_asked(serve, taken):
    serve([{"id": np.arange(20)}])
    with penstock.attach("feed", 20, borrow=True, pin_memory=True) as loader:
        (batch,) = loader
        assert batch["id"].tolist() == list(range(20))
        assert not lies_in(batch["id"], taken)
        del batch


def test_without_a_gpu_nothing_is_pinned(serve):
    assert type(destination.on_host(pinned=True)) is (
        destination.OnPinnedHost if torch.cuda.is_available() else destination.OnHost
    )
    serve([{"x": torch.ones(20)}])
    with penstock.attach("feed", 20, pin_memory=True) as loader:
        (batch,) = loader
        assert batch["x"].is_pinned() == torch.cuda.is_available()
    with pytest.raises(penstock.errors.BadSetting, match="pin_memory="):
        penstock.attach("feed", 20, pin_memory=1)  # type: ignore[arg-type]
