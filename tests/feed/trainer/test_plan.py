"""Promise 4, from the source to the trainer: the batches that the loader gives alone, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.feed.reading import at_once
from torch.utils.data import DataLoader, Dataset

import penstock

SEED = 4321


class Images(Dataset[Any]):
    """Random crops, labels and names, as a trainer has them."""

    def __len__(self) -> int:
        return 45

    def __getitem__(self, i: int) -> Any:
        return {"image": torch.rand(3, 4, 4) + i, "label": i, "name": f"{i}.jpg", "pair": (float(i), i % 2 == 0)}


MAKERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "in order": lambda: DataLoader(Images(), 8, num_workers=2),
    "shuffled": lambda: DataLoader(Images(), 8, num_workers=2, shuffle=True),
    "drop_last": lambda: DataLoader(Images(), 8, num_workers=2, shuffle=True, drop_last=True),
}


def alone(make: Callable[[], DataLoader[Any]], epochs: int) -> list[list[Any]]:
    torch.manual_seed(SEED)
    loader = make()
    return [list(loader) for _ in range(epochs)]


def assert_identical(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        assert_identical(list(one.values()), list(other.values()))
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_identical(a, b)
    else:
        assert one == other


@pytest.mark.parametrize("borrow", [False, True])
@pytest.mark.parametrize("case", MAKERS)
def test_a_trainer_gets_the_batches_of_the_loader_alone(serve, case, borrow):
    expected = alone(MAKERS[case], 3)
    serve(MAKERS[case](), segments=1, seed=SEED)
    with penstock.attach("feed", borrow=borrow) as loader:
        assert len(loader) == len(expected[0])
        for epoch in expected:
            for batch, own in zip(loader, epoch, strict=True):
                assert_identical(batch, own)
                del batch


def test_all_trainers_get_the_same_order_at_any_batch_size(serve):
    expected = [batch for epoch in alone(MAKERS["shuffled"], 2) for batch in epoch]
    labels = torch.cat([batch["label"] for batch in expected])
    images = torch.cat([batch["image"] for batch in expected])
    serve(MAKERS["shuffled"](), segments=1, seed=SEED)
    loaders = [penstock.attach("feed", size) for size in (1, 7, 8, 45)]

    def train(i: int) -> None:
        with loaders[i] as loader:
            batches = [batch for _ in range(2) for batch in loader]
        assert torch.equal(torch.cat([batch["label"] for batch in batches]), labels)
        assert torch.equal(torch.cat([batch["image"] for batch in batches]), images)

    at_once(train, len(loaders))
