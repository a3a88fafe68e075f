"""Batches as another framework's arrays, on the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

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


def test_jax(serve: Any) -> None:
    jax = pytest.importorskip("jax")
    serve([BATCH])
    batch = one("jax")
    assert isinstance(batch["t"], jax.Array)
    assert float(batch["t"].sum()) == 15.0
    assert batch["n"].tolist() == [0, 1, 2]


def test_a_view_stays_a_view(serve: Any) -> None:
    serve([{"t": torch.arange(6)}])
    with penstock.attach("feed", framework="numpy", borrow=True) as loader:
        batch = next(iter(loader))
        assert loader.statistics().viewed_bytes == 48
        assert batch["t"].tolist() == list(range(6))


def test_a_type_that_the_framework_has_not_is_an_error_that_names_it(serve: Any) -> None:
    serve([{"t": torch.ones(2, dtype=torch.bfloat16)}])
    with pytest.raises(penstock.UnsupportedLeaf, match=r"bfloat16.*numpy"):
        one("numpy")


@pytest.mark.parametrize(("name", "says"), [("tensorflow", "it is one of torch"), ("cupy", "not installed")])
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


def test_a_feeds_transform_that_loses_rows_is_an_error(serve: Any) -> None:
    serve(penstock.ArraySource({"n": np.arange(10)}, batch_size=5), transform=lambda batch: {"n": batch["n"][:2]})
    with (
        penstock.attach("feed") as loader,
        pytest.raises(penstock.SourceError, match="transform, made 2 rows of 5"),
    ):
        next(iter(loader))
