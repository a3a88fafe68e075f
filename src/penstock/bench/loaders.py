"""Ready blocks through a torch ``DataLoader``: what its own transport reaches."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from penstock.bench.blocks import ROWS


class ReadyBlocks(Dataset[torch.Tensor]):
    """Every item is a whole block of ``nbytes`` that takes nothing to make."""

    def __init__(self, nbytes: int) -> None:
        data = np.random.default_rng(0).integers(0, 256, (ROWS, nbytes // ROWS), np.uint8)
        self._block = torch.from_numpy(data)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, _: int) -> torch.Tensor:
        return self._block


def blocks_loader(nbytes: int, *, workers: int) -> DataLoader[Any]:
    """A loader of ready blocks; its workers copy each into shared memory, as they do with any batch."""
    return DataLoader(ReadyBlocks(nbytes), batch_size=None, num_workers=workers, collate_fn=_as_it_is)


def _as_it_is(block: torch.Tensor) -> torch.Tensor:
    return block
