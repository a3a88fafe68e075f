"""Samples whose bytes follow from their number, and loops that check them, for tests with a fake GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import penstock

SAMPLES = 203
ROW_BYTES = 96


def rows(samples: int = SAMPLES, batch_size: int = 10) -> penstock.ArraySource:
    ids = np.arange(samples)
    return penstock.ArraySource(
        {"id": ids, "bytes": np.repeat((ids % 251).astype(np.uint8)[:, None], ROW_BYTES, 1)},
        batch_size=batch_size,
        segments=5,
    )


def ids_of(loader: Any, most: int | None = None) -> list[int]:
    """The samples of a loop on a GPU, each with the bytes that it should have."""
    seen: list[int] = []
    for i, batch in enumerate(loader, 1):
        assert isinstance(batch["id"], torch.Tensor)
        assert (batch["bytes"] == (batch["id"] % 251).to(torch.uint8)[:, None]).all()
        seen += batch["id"].tolist()
        if i == most:
            break
    return seen


def ids_of_host(loader: Any) -> list[int]:
    """The same of a loop on the host."""
    seen: list[int] = []
    for batch in loader:
        assert isinstance(batch["id"], np.ndarray)
        assert (batch["bytes"] == (batch["id"] % 251).astype(np.uint8)[:, None]).all()
        seen += batch["id"].tolist()
    return seen
