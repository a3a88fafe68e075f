"""Batches as another framework's arrays, on the same memory."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.fakes.gpu import FakeGpu

import penstock

BATCH = {"t": torch.arange(6.0).reshape(3, 2), "n": np.arange(3), "names": ["a", "b", "c"], "k": 5}


def one(framework: Any, **options: Any) -> Any:
    with penstock.attach("feed", framework=framework, **options) as loader:
        return next(iter(loader))


def test_torch(serve: Any) -> None:
    serve([BATCH])
    batch = one("torch")
    assert isinstance(batch["t"], torch.Tensor)
    assert isinstance(batch["n"], torch.Tensor)
    assert batch["n"].tolist() == [0, 1, 2]
    assert batch["names"] == ["a", "b", "c"]
    assert batch["k"] == 5
    batch["n"][0] = 7  # it is the trainer's own


def test_numpy(serve: Any) -> None:
    serve([BATCH])
    batch = one("numpy")
    assert isinstance(batch["t"], np.ndarray)
    assert batch["t"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert isinstance(batch["n"], np.ndarray)


needs_jax = pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="JAX is not installed")
JAX_TRAINER = Path(__file__).with_name("jax_trainer.py")


def trained_with_jax(check: str) -> None:
    """Have a process of its own, where JAX is, attach to the feed and check what it gets."""
    done = subprocess.run([sys.executable, JAX_TRAINER, check], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.whole
@needs_jax
def test_jax_gets_the_values_and_types_that_it_has(serve: Any) -> None:
    names = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "float32", "complex64"]
    arrays = {name: np.arange(12).reshape(4, 3).astype(name) for name in names}
    others = {"bfloat16": torch.arange(4, dtype=torch.bfloat16), "names": ["a", "b", "c", "d"], "k": 5}
    serve([{"arrays": arrays, **others}])
    trained_with_jax("types")


@pytest.mark.whole
@needs_jax
def test_jax_gets_64_bits_where_it_was_told_to_have_them_and_32_otherwise(serve: Any) -> None:
    serve([{"n": np.arange(3), "t": torch.zeros(3, dtype=torch.float64)}] * 2)
    trained_with_jax("wide_types")


@pytest.mark.whole
@needs_jax
@pytest.mark.parametrize("check", ["private_copies", "views", "donated"])
def test_what_jax_keeps_stays_right_while_the_feed_goes_on(serve: Any, check: str) -> None:
    ids = np.arange(3000, dtype=np.int32)
    x = np.repeat(ids[:, None], 1500, 1).astype(np.float32)
    serve(penstock.ArraySource({"id": ids, "x": x}, batch_size=192, segments=4), window="10MiB")
    trained_with_jax(check)


@pytest.mark.whole
@needs_jax
def test_memory_that_jax_shares_is_not_used_again_before_jax_has_let_it_go() -> None:
    trained_with_jax("recycled")


def test_a_view_stays_a_view(serve: Any) -> None:
    serve([{"t": torch.arange(6)}])
    with penstock.attach("feed", framework="numpy", borrow=True) as loader:
        batch = next(iter(loader))
        assert loader.statistics().viewed_bytes == 48
        assert batch["t"].tolist() == list(range(6))


@pytest.mark.whole
@needs_jax
def test_views_on_a_gpu_are_not_given_to_a_framework_whose_streams_are_unknown(serve: Any) -> None:
    serve([{"t": torch.arange(6)}], memory=FakeGpu())
    with pytest.raises(penstock.BadSetting, match=r"on which streams jax reads a view.*Leave borrow out"):
        penstock.attach("feed", framework="jax", borrow=True, device=FakeGpu())


@pytest.mark.whole
@needs_jax
def test_views_on_a_rank_s_processor_are_given_to_jax(serve: Any) -> None:
    serve([{"t": torch.arange(6)}])
    penstock.attach("feed", framework="jax", borrow=True, device="cpu:0").close()


def test_a_type_that_the_framework_has_not_is_an_error_that_names_it(serve: Any) -> None:
    serve([{"t": torch.ones(2, dtype=torch.bfloat16)}])
    with pytest.raises(penstock.UnsupportedLeaf, match=r"bfloat16.*numpy"):
        one("numpy")


@pytest.mark.parametrize(("name", "says"), [("tensorflow", "it must be one of torch"), ("cupy", "not installed")])
def test_a_framework_that_cannot_be_had_is_an_error(serve: Any, name: Any, says: str) -> None:
    serve([BATCH])
    with pytest.raises(penstock.BadSetting, match=says):
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
