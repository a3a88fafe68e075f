"""Sources that one training reads by itself, without a feed."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.basics.packages import data_loader_worker, initialized_distributed
from penstock.contracts import Cursor, Ids, SourceBlock, Tree, Wanted
from penstock.errors import BadSetting
from penstock.sources.order import Ordered
from penstock.sources.sharding import batches, next_slice
from penstock.tree import build, describe

UNTRAVELLED = (
    "the source of {} cannot be pickled: it has files or processes open. Make it where it is used, such as in the "
    "function that share() takes"
)


class Alone(Ordered, ABC):
    """Makes a source a loader: each loop over it is the next epoch, in this process.

    Batches are the source's blocks, with ``drop_last`` without a last one that is not full. With
    ``shard=(rank, world)`` they are this rank's part of each epoch, equally many for each rank.
    """

    shard: tuple[int, int] | None = None
    _epoch = 0

    @abstractmethod
    def open(self, at: Cursor, wanted: Wanted | None = None) -> Iterator[SourceBlock]: ...

    def __len__(self) -> int:
        _, world = self.shard or (0, 1)
        return batches(self.samples, self.batch_size, world, drop_last=self.drop_last)

    def __iter__(self) -> Iterator[Tree]:
        _check_alone(type(self).__name__, self.shard)
        epoch, self._epoch = self._epoch, self._epoch + 1
        if self.shard is None or self.shard[1] == 1:
            for block in self.open(Cursor(epoch, 0)):
                if block.rows == self.batch_size or not self.drop_last:
                    yield block.tree
        else:
            yield from self._part(epoch, *self.shard)

    def _part(self, epoch: int, rank: int, world: int) -> Iterator[Tree]:
        """Yield a rank's batches, of which only the last ones may have rows of several blocks."""
        full = len(self) * self.batch_size * world
        left = full if self.drop_last else self.samples
        at, bounds, rows = 0, [0], list[int]()  # this rank's rows and those between them, in turns
        while (cut := next_slice(left, self.batch_size, rank, world)) is not None:
            bounds += at + cut.start, at + cut.stop
            rows.append(cut.stop - cut.start)
            at, left = at + cut.taken, left - cut.taken
        edges = np.array(bounds)

        def wanted(sample: int, ids: Ids) -> Any:
            return np.searchsorted(edges, np.arange(sample, sample + len(ids)), side="right") % 2 == 0

        held: list[list[Any]] = []
        for block in self.open(Cursor(epoch, 0), wanted):
            if not block.stored:
                continue
            layout, _, leaves = describe(block.tree)
            held.append(leaves)
            while rows and sum(len(leaves[0]) for leaves in held) >= rows[0]:
                first, whole = rows.pop(0), [np.concatenate(each) for each in zip(*held, strict=True)]
                yield build(layout, [leaf[:first] for leaf in whole])
                held = [[leaf[first:] for leaf in whole]]


def _check_alone(name: str, shard: tuple[int, int] | None) -> None:
    """Refuse what would give everything to each of several processes.

    Raises:
        BadSetting: this process is a worker of a ``DataLoader``, or one of several ranks.
    """
    if (worker := data_loader_worker()) is not None:
        raise BadSetting(
            f"{name} in a DataLoader with {worker.num_workers} workers: each would give all of it, and each epoch "
            "would be the first one again. Loop over the source itself, which has workers of its own, or share it"
        )
    distributed, world = initialized_distributed(), os.environ.get("WORLD_SIZE", "1")
    ranks = int(world) if world.isdecimal() else 1
    if shard is None and (distributed.get_world_size() if distributed is not None else ranks) > 1:
        raise BadSetting(
            f"{name} alone under several ranks: each would get every sample. Pass shard=(rank, world), or "
            "shard=(0, 1) if that is meant"
        )
