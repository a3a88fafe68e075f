"""How an epoch's rows become batches, for data-parallel trainers too; sources that one training reads alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import numpy as np

from penstock.basics.packages import data_loader_worker, initialized_distributed
from penstock.basics.sizes import whole_number
from penstock.contracts import Cursor, Ids, Tree
from penstock.errors import BadSetting
from penstock.sources.order import Ordered
from penstock.tree import Described, Leaf, Ragged, array_nodes, build, describe, joined

UNTRAVELLED = (
    "the source of {} cannot be pickled: it has files or processes open. Make it where it is used, such as in the "
    "function that share() takes"
)


class RankSlice(NamedTuple):
    """Rows [start, stop) of what remains are this rank's next batch; ``taken`` rows go to all ranks."""

    start: int
    stop: int
    taken: int


def rank_of(shard: Any) -> tuple[int, int] | None:
    """Return ``shard=`` as (rank, world); None for a trainer that is not data-parallel."""
    if shard is None:
        return None
    try:
        rank, world = shard
    except (TypeError, ValueError):
        raise BadSetting(f"shard={shard!r}: it must be (rank, world), such as (0, 4)") from None
    world = whole_number(f"shard={shard!r}: world", world, 1, 2**31 - 1)
    return whole_number(f"shard={shard!r}: rank", rank, 0, world - 1), world


def next_slice(
    remaining: int, batch_size: int, rank: int, world: int, *, pad: bool = False, full: bool = False
) -> RankSlice | None:
    """Return a rank's next batch when ``remaining`` rows of the epoch are left; None at its end.

    Every rank gets the same number of batches. The rows left at the end are
    split evenly; if they are fewer than the ranks, the step before them is
    ``world`` rows shorter, so that every rank gets some. With ``pad`` all
    batches of a step are equally long: the last one's overlap; with ``full`` too, as far as the rows that are left
    can fill them.
    """
    taken = min(remaining, batch_size * world)
    if pad:
        each = min(taken, batch_size) if full else -(-taken // world)
        gaps = max(1, world - 1)
        start = (rank * (taken - each) + gaps // 2) // gaps
        return RankSlice(start, start + each, taken) if taken else None
    if 0 < remaining - taken < world:
        taken = remaining - world
    if taken < world:
        return None
    each, extra = divmod(taken, world)
    start = rank * each + min(rank, extra)
    return RankSlice(start, start + each + (rank < extra), taken)


def batches(samples: int, batch_size: int, world: int, *, drop_last: bool, pad: bool = False) -> int:
    """Return how many batches ``next_slice`` gives each rank in an epoch.

    With ``pad`` they are those of a ``DataLoader`` over torch's ``DistributedSampler``.
    """
    if pad:
        samples, world = -(-samples // world), 1
    step = batch_size * world
    if world > 1 and not drop_last and (samples < world or (batch_size == 1 and samples % world)):
        raise BadSetting(
            f"{samples} samples cannot be split among {world} ranks into equally many batches of at most "
            f"{batch_size}: {samples % world} are left over. Pass drop_last=True (or pad=True, to share() or "
            "attach()), or use another batch_size"
        )
    return samples // step if drop_last else -(-samples // step)


def drawn(count: int, start: int, stop: int, *words: int) -> tuple[int, ...]:
    """Draw ``count`` different positions in [start, stop), sorted; which ones depends on ``words`` alone.

    Each set of positions is equally likely (R. Floyd, in J. Bentley,
    "Programming pearls: a sample of brilliance", CACM 30:9, 1987). The raw
    words of PCG64 are fixed across versions of NumPy (NEP 19).
    """
    generator = np.random.PCG64(np.random.SeedSequence(words))
    raw = [int(generator.random_raw()) for _ in range(count)]
    chosen: set[int] = set()
    for last, word in zip(range(stop - start - count, stop - start), raw, strict=True):
        position = word * (last + 1) >> 64
        chosen.add(last if position in chosen else position)
    return tuple(start + position for position in sorted(chosen))


class Alone(Ordered):
    """Makes a source a loader: each loop over it is the next epoch, in this process.

    Batches are the source's blocks, or as long as these are where some are short amid a cycle; with ``drop_last``
    without a last one that is not full. With ``shard=(rank, world)`` they are this rank's part of each epoch,
    equally many for each rank.
    """

    shard: tuple[int, int] | None = None
    _epoch = 0

    def __len__(self) -> int:
        _, world = self.shard or (0, 1)
        return batches(self.samples, self.batch_size, world, drop_last=self.drop_last)

    def __iter__(self) -> Iterator[Tree]:
        _check_alone(type(self).__name__, self.shard)
        epoch, self._epoch = self._epoch, self._epoch + 1
        rank, world = self.shard or (0, 1)
        if world == 1 and not hasattr(self, "starts"):
            pads: bool | None = None  # blocks are alike
            for block in self.open(Cursor(epoch, 0)):
                if pads is None:
                    pads = any(map(_is_padded, array_nodes(describe(block.tree, whole=True).layout)))
                if block.rows == self.batch_size or not self.drop_last:
                    yield _padded(describe(block.tree, whole=True)) if pads else block.tree
        else:
            yield from self._part(epoch, rank, world)

    def __getitem__(self, index: object) -> NoReturn:
        """Refuse to be the data set of a ``DataLoader``, which asks for samples by number."""
        name = type(self).__name__
        raise BadSetting(
            f"a {name} gives whole batches, not samples by number: loop over it in place of a DataLoader of it, "
            f"or share it: penstock.share(lambda: {name}(...), ...)"
        )

    def _part(self, epoch: int, rank: int, world: int) -> Iterator[Tree]:
        """Yield a rank's batches; only the last ones may have rows of several blocks."""
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
                first, nodes = rows.pop(0), array_nodes(layout)
                whole = [joined(node, each) for node, *each in zip(nodes, *held, strict=True)]
                yield _padded(Described(layout, first, [leaf[:first] for leaf in whole]))
                held = [[leaf[first:] for leaf in whole]]


def _is_padded(node: Leaf) -> bool:
    return isinstance(node, Ragged) and node.give == "padded"


def _padded(batch: Described) -> Tree:
    """Build a batch whose ragged rows are padded where they are given so, as a feed's trainers get them."""
    nodes = zip(array_nodes(batch.layout), batch.leaves, strict=True)
    return build(batch.layout, [leaf.padded() if _is_padded(node) else leaf for node, leaf in nodes])


def _check_alone(name: str, shard: tuple[int, int] | None) -> None:
    """Refuse what would give everything to each of several processes."""
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
