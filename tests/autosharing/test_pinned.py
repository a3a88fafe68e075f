"""Loaders that pin their batches, tried on memory that is not pinned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.feed.trainer.test_framework import lies_in
from torch.utils.data import DataLoader, TensorDataset

import penstock
from penstock.autosharing import guard
from penstock.autosharing.options import ShareOptions

pytestmark = pytest.mark.whole

X = torch.arange(24.0).reshape(12, 2)


def named(samples: list[Any]) -> dict[str, Any]:
    rows = torch.stack([x for (x,) in samples])
    return {"x": rows, "pair": (rows[:, 0].numpy(), "a"), "name": [f"row {int(x[0])}" for x in rows]}


def batches(*, pin_memory: bool) -> list[Any]:
    def alone() -> Any:
        raise AssertionError("it is not shared")

    loader = DataLoader(TensorDataset(X), 4, shuffle=True, collate_fn=named, pin_memory=pin_memory)
    return list(guard.guard(loader, alone))


@pytest.fixture
def shares(monkeypatch):
    monkeypatch.setattr(guard, "options", ShareOptions(strict=True))
    yield
    for feed in penstock.feeds():
        penstock.stop(feed.name)


def test_batches_are_pinned_where_their_own_loader_pins_and_are_otherwise_the_same(shares, taken):
    found = {pin: batches(pin_memory=pin) for pin in (True, False, True)}
    assert len(penstock.feeds()) == 1
    for pin, each in found.items():
        assert [sorted(batch) for batch in each] == [["name", "pair", "x"]] * 3
        assert sorted(row for batch in each for row in batch["x"][:, 0].tolist()) == X[:, 0].tolist()
        for batch in each:
            first, text = batch["pair"]
            assert (type(batch["x"]), type(batch["pair"]), type(first).__module__) == (
                torch.Tensor,
                tuple,
                "numpy",
            )
            assert text == "a" and batch["name"] == [f"row {int(x)}" for x in first]
            assert first.tolist() == batch["x"][:, 0].tolist()
            assert lies_in(batch["x"], taken) == pin
