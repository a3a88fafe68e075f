"""Sources that one training reads by itself, without a feed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from penstock.contracts import Cursor, SourceBlock, Tree


class Alone(ABC):
    """Makes a source a loader: each loop over it is the next epoch, in this process.

    Batches are the source's blocks, with ``drop_last`` without a last one that is not full.
    """

    batches: int
    batch_size: int
    samples: int
    drop_last: bool
    _epoch = 0

    @abstractmethod
    def open(self, at: Cursor) -> Iterator[SourceBlock]: ...

    def __len__(self) -> int:
        return self.samples // self.batch_size if self.drop_last else self.batches

    def __iter__(self) -> Iterator[Tree]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        for block in self.open(Cursor(epoch, 0)):
            if block.rows == self.batch_size or not self.drop_last:
                yield block.tree
