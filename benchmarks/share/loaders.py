"""Ready samples through a torch ``DataLoader``, to measure its transport."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.share.blocks import ROWS, Blocks
from torch.utils.data import DataLoader, Dataset


class ReadySamples(Dataset[torch.Tensor]):
    """Samples that lie in memory; ``ROWS`` of them make a block of ``nbytes``."""

    def __init__(self, nbytes: int) -> None:
        self._samples = [torch.from_numpy(row) for block in Blocks(nbytes, 1) for row in block]  # pyright: ignore

    def __len__(self) -> int:
        return ROWS << 14

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._samples[index % ROWS]


def samples_loader(nbytes: int, *, workers: int) -> DataLoader[Any]:
    """Make a loader of ready samples; its workers collate batches in shared memory, as in any loader."""
    return DataLoader(ReadySamples(nbytes), batch_size=ROWS, num_workers=workers)
