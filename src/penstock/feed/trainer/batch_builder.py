"""A batch put together from rows of the blocks that pass, and turned into another framework's arrays."""

from __future__ import annotations

import importlib
from typing import Any, Literal, get_args

import numpy as np

from penstock.contracts import Ids, Tree
from penstock.errors import BadSetting, UnsupportedLeaf
from penstock.feed.trainer.destination import Destination
from penstock.feed.trainer.holdings import ReceivedBlock
from penstock.tree import Array, Node, Strings, array_nodes, build, describe, strings_from_bytes

Framework = Literal["torch", "numpy", "jax", "cupy"]
_FROM_DLPACK = {
    "torch": ("torch", "from_dlpack"),
    "numpy": ("numpy", "from_dlpack"),
    "jax": ("jax.dlpack", "from_dlpack"),
    "cupy": ("cupy", "from_dlpack"),
}


def check_framework(framework: str | None) -> None:
    """Check that a framework is known and installed.

    Raises:
        BadSetting: there is no such framework, or it is not installed.
    """
    if framework is None:
        return
    if framework not in get_args(Framework):
        raise BadSetting(f"framework={framework!r}: it must be one of {', '.join(get_args(Framework))}")
    module = _FROM_DLPACK[framework][0]
    try:
        importlib.import_module(module)
    except ImportError:
        raise BadSetting(f"framework={framework!r}: {module} is not installed in this process") from None


def converted(tree: Tree, framework: Framework) -> Tree:
    """Turn every array and tensor of a batch into this framework's, without a copy (https://dmlc.github.io/dlpack).

    Without ``jax_enable_x64`` JAX turns 64-bit numbers into 32-bit ones. It
    copies those, and arrays that do not begin at a multiple of 64 bytes.

    Raises:
        UnsupportedLeaf: the framework has no such type, or cannot reach where the leaf lies.
    """
    module, function = _FROM_DLPACK[framework]
    from_dlpack = getattr(importlib.import_module(module), function)
    parts = describe(tree, whole=True, anywhere=True)
    leaves: list[Any] = []
    for node, leaf in zip(array_nodes(parts.layout), parts.leaves, strict=True):
        if isinstance(node, Strings) or node.library in ("numpy scalar", framework):
            leaves.append(leaf)
            continue
        try:
            leaves.append(from_dlpack(_exported(leaf) if framework == "jax" else leaf))
        except (TypeError, ValueError, RuntimeError, BufferError, AttributeError) as error:
            raise UnsupportedLeaf(
                f"a leaf of {node.library} {node.dtype}, shape {node.shape}, cannot become {framework}'s: {error}"
            ) from None
    return build(parts.layout, leaves)


def _exported(leaf: Any) -> Any:
    """Return a leaf that NumPy exports to JAX, which asks for DLPack's first version: it has no read-only arrays.

    JAX's own arrays cannot be written to, and the pages of a view stay read-only.
    """
    if type(leaf) is not np.ndarray or leaf.flags.writeable:
        return leaf
    writable: Any = leaf[...]
    writable.flags.writeable = True
    return writable


class BatchBuilder:
    """Collects the rows of one batch, block by block, so that each block can go at once.

    Args:
        most: Most rows that it will have.
        destination: Where rows are copied to.

    Attributes:
        rows: Rows that it has; the caller adds those that it has copied.
    """

    def __init__(self, most: int, destination: Destination) -> None:
        self.rows = 0
        self._most = most
        self._destination = destination
        self._layout: Node | None = None
        self._nodes: list[Array | Strings] = []
        self._row_bytes: list[int] = []
        self._parts: list[Any] = []

    def copy(self, block: ReceivedBlock, picked: slice | Ids, rows: int, to: int) -> None:
        """Copy some rows that a block has to row ``to`` of the batch; copying them again is harmless."""
        if self._layout is None:
            self._begin(block)
        for i, leaf in enumerate(block.leaves):
            if isinstance(self._nodes[i], Strings):
                values = block.scalars(self._destination.bytes(leaf))
                self._parts[i][to:] = values[picked] if isinstance(picked, slice) else [values[k] for k in picked]
                continue
            row_bytes = self._row_bytes[i]
            part = self._parts[i][to * row_bytes : (to + rows) * row_bytes]
            if isinstance(picked, slice):
                self._destination.copy(part, leaf[picked.start * row_bytes : picked.stop * row_bytes])
            elif row_bytes:
                self._destination.gather(part, leaf, picked, row_bytes)

    @property
    def copied_bytes(self) -> int:
        return sum(self._row_bytes) * self.rows

    def finish(self) -> Tree:
        """Return the batch, with the types of the source's batches."""
        assert self._layout is not None
        leaves = [self._leaf(node, part) for node, part in zip(self._nodes, self._parts, strict=True)]
        return build(self._layout, leaves)

    def _begin(self, block: ReceivedBlock) -> None:
        self._parts, self._row_bytes = [], []
        self._nodes = block.nodes
        for node, leaf in zip(block.nodes, block.leaves, strict=True):
            row_bytes = 0 if isinstance(node, Strings) else leaf.nbytes // block.stored
            self._row_bytes.append(row_bytes)
            self._parts.append([] if isinstance(node, Strings) else self._destination.take(row_bytes * self._most))
        self._layout = block.placement.layout

    def _leaf(self, node: Array | Strings, part: Any) -> Any:
        if isinstance(node, Strings):
            return strings_from_bytes(node, part)
        if self.rows < self._most:
            part = part[: part.nbytes // self._most * self.rows]
        return self._destination.leaf(node, part, self.rows)


def filled(tree: Tree, rows: int) -> Tree:
    """Return a batch of ``rows`` rows: a shorter one is filled with its first rows again."""
    parts = describe(tree, anywhere=True)
    if parts.rows >= rows:
        return tree
    picked = [i % parts.rows for i in range(rows)]
    leaves: list[Any] = []
    for node, leaf in zip(array_nodes(parts.layout), parts.leaves, strict=True):
        more: Any = [leaf[i] for i in picked] if isinstance(node, Strings) else leaf[picked]
        pinned = isinstance(node, Array) and node.library == "torch" and leaf.is_pinned()
        leaves.append(more.pin_memory() if pinned else more)
    return build(parts.layout, leaves)


def whole_copy(block: ReceivedBlock, destination: Destination, rows: int | None) -> tuple[Tree, int]:
    """Copy all of a block, of ``rows`` rows, or of a whole batch (None); return the copy and its size in bytes."""
    leaves: list[Any] = []
    copied = 0
    for node, leaf in zip(block.nodes, block.leaves, strict=True):
        if isinstance(node, Strings):
            leaves.append(strings_from_bytes(node, block.scalars(destination.bytes(leaf))))
            continue
        memory = destination.take(leaf.nbytes)
        destination.copy(memory, leaf)
        copied += leaf.nbytes
        leaves.append(destination.leaf(node, memory, rows))
    return build(block.placement.layout, leaves), copied


def view(block: ReceivedBlock, picked: slice, destination: Destination, *, whole: bool) -> tuple[Tree, int]:
    """Return views into the ring of some rows of a block, or of a whole batch; and their bytes."""
    leaves: list[Any] = []
    viewed = 0
    for node, leaf in zip(block.nodes, block.leaves, strict=True):
        if isinstance(node, Strings):
            values = block.scalars(destination.bytes(leaf))
            leaves.append(strings_from_bytes(node, values if whole else values[picked]))
            continue
        row_bytes = leaf.nbytes // block.stored
        seen = leaf if whole else leaf[picked.start * row_bytes : picked.stop * row_bytes]
        viewed += seen.nbytes
        leaves.append(destination.leaf(node, seen, None if whole else picked.stop - picked.start, writable=False))
    return build(block.placement.layout, leaves), viewed
