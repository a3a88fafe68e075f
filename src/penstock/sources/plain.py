"""Sources that need no framework: arrays in memory, and batches of what can be iterated again and again."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from penstock.contracts import Cursor, Ids, SourceBlock, Tree
from penstock.errors import BadSetting, SourceError
from penstock.sources.order import Ordered, Planned, digest
from penstock.sources.seeds import order_seed, seed_process
from penstock.tree import Ragged, Strings, array_nodes, build, describe


def length(thing: Any) -> int | None:
    """Return the length of a loader, a sampler or an iterable of batches; None if it knows none."""
    try:
        return len(thing)
    except (TypeError, NotImplementedError):  # the second from some samplers of torch, and of users
        return None


class ArraySource(Ordered):
    """Feeds rows of arrays that lie in memory, shuffled unless ``shuffle`` is False.

    Args:
        tree: Any nesting of tuple, list and dict with NumPy arrays and torch tensors at its leaves, each of shape
            ``(samples, ...)``, lists of one number or text per sample, or ``RaggedRows``.
        batch_size: Rows of a block.
        shuffle: Draw a new random order in each cycle; False for the order of the rows.
        drop_last: Whether trainers leave out of each epoch the rows that fill none of their batches, unless they
            say otherwise.
        segments: Parts of a cycle that are shuffled each by itself; None for one.
        seed: Random seed of the order.

    Raises:
        BadSetting: ``batch_size`` is below 1.
        UnsupportedLeaf: the arrays differ in rows, or a leaf cannot travel.

    Examples:
        >>> source = penstock.ArraySource({"id": np.arange(100)}, batch_size=20)
        >>> with penstock.share(lambda: source, "numbers", linger=0.1) as loader:
        ...     sorted(id for batch in loader for id in batch["id"].tolist()) == list(range(100))
        True
    """

    def __init__(
        self,
        tree: Tree,
        *,
        batch_size: int = 128,
        shuffle: bool = True,
        drop_last: bool = False,
        segments: int | None = None,
        seed: int = 0,
    ) -> None:
        self._layout, rows, self._leaves = describe(tree)
        self._nodes = list(array_nodes(self._layout))
        self._visit(rows, batch_size, segments, seed, shuffle=shuffle, drop_last=drop_last)
        self.order = digest("rows", self._order.digest)
        self.description = f"{rows:,} rows of arrays"

    def load(self, plans: Iterator[Planned], cycle: int) -> Iterator[SourceBlock]:
        for plan in plans:
            leaves = zip(self._nodes, self._leaves, strict=True)
            rows = [self._rows(node, leaf, plan.ids) for node, leaf in leaves]
            yield plan.block(build(self._layout, rows) if len(plan.ids) else None)

    def close(self) -> None:
        """There is nothing to release."""

    def _rows(self, node: Any, leaf: Any, ids: Ids) -> Any:
        if isinstance(node, Strings):
            picked = [leaf[i] for i in ids]
            return tuple(picked) if node.kind == "tuple" else picked
        if isinstance(node, Ragged):
            return leaf[ids]
        if node.library == "torch":
            return leaf.index_select(0, sys.modules["torch"].from_numpy(ids))
        return np.take(leaf, ids, axis=0)


class InOnePass:
    """A source of one segment, which reaches a position by passing over what lies before it."""

    seekable = False
    segment_starts = (0,)
    samples: int | None = None
    batch_size: int | None = None


class IterableSource(InOnePass):
    """Feeds the batches of a re-iterable, pass after pass, as it gives them.

    It has one segment, and a position is reached by reading what lies before it.
    The generators of Python, NumPy and torch are seeded at the beginning of each
    pass, so that an order drawn from them can be repeated.
    """

    def __init__(self, batches: Iterable[Tree], *, seed: int = 0) -> None:
        if isinstance(batches, Iterator):
            raise BadSetting(
                f"a {type(batches).__name__} can be iterated only once, a feed is read pass after pass: "
                "give a list, or an object whose __iter__ starts afresh"
            )
        self._batches = batches  # each ``iter()`` of it begins a new pass
        self._seed = seed  # random seed of what it draws in the first pass; later passes' seeds derive from it
        self.batches = length(batches)
        self.order = digest("batches", type(batches).__qualname__, self.batches, seed)
        self.description = f"batches of a {type(batches).__name__}"

    def open(self, at: Cursor) -> Iterator[SourceBlock]:
        seed_process(order_seed(self._seed, at.cycle))
        yield from counted(self._batches, at)

    def close(self) -> None:
        """There is nothing to release."""


def counted(batches: Iterable[Tree], at: Cursor) -> Iterator[SourceBlock]:
    """Number the samples of a pass, and leave out blocks that end at or before ``at.sample``."""
    sample = 0
    for tree in batches:
        rows = describe(tree, whole=True).rows
        if rows and sample + rows > at.sample:
            yield SourceBlock(sample, rows, tree)
        sample += rows
    if sample == 0:
        raise SourceError(
            f"the source gave no sample in cycle {at.cycle}: it is empty, or can be iterated only once"
        )
