"""Batches in pinned memory: tried on memory that is not pinned; and without a GPU nothing is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import penstock
from penstock.feed.trainer import destination


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
    with pytest.raises(penstock.BadSetting, match="pin_memory="):
        penstock.attach("feed", 20, pin_memory=1)  # type: ignore[arg-type]
