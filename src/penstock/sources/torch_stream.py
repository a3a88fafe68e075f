"""A torch ``DataLoader`` that nobody but itself can order: its batches, as they come."""

# torch's own annotations leave a loader's samples and settings unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any

import torch
from torch.utils.data import DataLoader

from penstock.contracts import Cursor, SourceBlock
from penstock.sources.planned import describe_loader, end_workers, length
from penstock.sources.stream import counted
from penstock.sources.workers import init_fn_of


class StreamLoader:
    """A ``DataLoader`` over an ``IterableDataset``, or one whose dataset gives whole batches.

    One segment; a position is reached by loading what lies before it. Cycle c
    runs under ``torch.manual_seed(seed + c)``.
    """

    seekable = False
    samples = None
    segment_starts = (0,)

    def __init__(self, loader: DataLoader[Any], *, seed: int) -> None:
        self._loader = copy(loader)
        self._loader.worker_init_fn = init_fn_of(loader)
        self._iterator: Any = None
        self._seed = seed
        self.batches = length(loader)
        self.batch_size = loader.batch_size
        self.description = describe_loader(loader)

    def open(self, at: Cursor) -> Iterator[SourceBlock]:
        torch.manual_seed(self._seed + at.cycle)
        self._iterator = iter(self._loader)
        try:
            yield from counted(self._iterator, at)
        finally:
            if not self._loader.persistent_workers:
                end_workers(self._iterator)

    def close(self) -> None:
        end_workers(self._iterator)
