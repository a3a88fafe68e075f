"""A source of arrays that lie in memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.contracts import NO_JOINTS, Cursor, Ids, Joints, SourceBlock, Tree, Wanted
from penstock.sources.order import Ordered, digest, planned
from penstock.tree import Strings, array_nodes, build, describe


class ArraySource(Ordered):
    """Feeds rows of arrays that lie in memory, shuffled unless told otherwise.

    Args:
        tree: Any nesting of tuple, list and dict with NumPy arrays and torch tensors at its leaves, each of shape
            ``(samples, ...)``, or lists of one number or text per sample.
        batch_size: Rows of a block.
        shuffle: Draw a new random order in each cycle; False keeps the order of the rows.
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

    def open(self, at: Cursor, wanted: Wanted | None = None, joints: Joints = NO_JOINTS) -> Iterator[SourceBlock]:
        for plan in planned(self._order.blocks(at, joints), wanted):
            leaves = zip(self._nodes, self._leaves, strict=True)
            rows = [self._rows(node, leaf, plan.ids) for node, leaf in leaves]
            yield plan.block(build(self._layout, rows) if len(plan.ids) else None)

    def close(self) -> None:
        """There is nothing to release."""

    def _rows(self, node: Any, leaf: Any, ids: Ids) -> Any:
        if isinstance(node, Strings):
            picked = [leaf[i] for i in ids]
            return tuple(picked) if node.kind == "tuple" else picked
        if node.library == "torch":
            return leaf.index_select(0, sys.modules["torch"].from_numpy(ids))
        return np.take(leaf, ids, axis=0)
