"""A batch put together from rows of the blocks that pass, and turned into another framework's arrays."""

from __future__ import annotations

import atexit
import importlib
import time
import weakref
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Literal, cast, get_args

import msgspec
import numpy as np

from penstock.basics.sizes import check_one_of
from penstock.contracts import Ids, Tree
from penstock.errors import BadSetting, UnsupportedLeaf
from penstock.feed.trainer.destination import Destination
from penstock.feed.trainer.holdings import ReceivedBlock
from penstock.linux.when_gone import when_gone
from penstock.tree import (
    Array,
    Leaf,
    Node,
    Ragged,
    Strings,
    are_scalars,
    array_nodes,
    build,
    describe,
    item_bytes,
    leaf_names,
    strings_from_bytes,
)
from penstock.tree.ragged import RaggedRows, is_tensor, offsets_of, positions

_OFFSETS = {"numpy": Array("numpy", "<i8", ()), "torch": Array("torch", "int64", ())}


class RaggedCopy:
    """Private copies of rows of a ragged leaf, block by block, joined when all have arrived.

    Before that it is not known how long they are.
    """

    def __init__(self, node: Ragged, destination: Destination) -> None:
        self._node = node
        self._destination = destination  # where rows are copied to
        self._item_bytes = item_bytes(node)
        self._parts: list[tuple[int, Ids, Any]] = []  # where each begins, how long its rows are, their bytes
        self._offsets: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes copied so far."""
        return sum(memory.nbytes for _, _, memory in self._parts)

    def copy(self, leaf: Any, offsets: Ids, picked: slice | Ids, to: int) -> None:
        """Copy some rows of a block's leaf to row ``to``, in place of what was copied to there or further on.

        ``leaf`` is its bytes, and ``offsets`` where its rows lie, checked.
        """
        starts = offsets[:-1][picked]
        lengths = offsets[1:][picked] - starts
        items, size = int(lengths.sum()), self._item_bytes
        values, memory = leaf[offsets.nbytes :], self._destination.take(items * size)
        if isinstance(picked, slice):
            start = int(offsets[picked.start]) * size
            self._destination.copy(memory, values[start : start + memory.nbytes])
        elif items:
            self._destination.gather(memory, values, positions(starts, lengths, items), size)
        self._parts = [*(part for part in self._parts if part[0] < to), (to, lengths, memory)]

    def finish(self) -> None:
        """Begin to bring over where rows begin, once all rows have been copied."""
        self._offsets = self._destination.bring(offsets_of(self._lengths()).view(np.uint8))

    def joined(self) -> Any:
        """Return the leaf as the trainer gets it, once all copies have arrived."""
        node, to, lengths = self._node, self._destination, self._lengths()
        memories = [memory for _, _, memory in self._parts]
        offsets = to.leaf(_OFFSETS[node.items.library], self._offsets, len(lengths) + 1)
        if node.give == "ragged":
            values, at = memories[0], 0
            if len(memories) > 1:
                values = to.room(self.nbytes, memories[0])
                for memory in memories:
                    values[at : at + memory.nbytes] = memory
                    at += memory.nbytes
            return RaggedRows(to.leaf(node.items, values, int(lengths.sum())), offsets)
        shape = (int(lengths.max(initial=0)), *node.items.shape)
        room = to.room(len(lengths) * shape[0] * self._item_bytes, memories[0])
        room[:] = 0
        padded = to.leaf(msgspec.structs.replace(node.items, shape=shape), room, len(lengths))
        for row, each, memory in self._parts:
            edges = offsets[row : row + len(each) + 1]
            values = to.leaf(node.items, memory, int(each.sum()))
            RaggedRows(values, edges - edges[0]).copy_into(padded[row : row + len(each)])
        return padded

    def _lengths(self) -> Ids:
        return np.concatenate([lengths for _, lengths, _ in self._parts])


Framework = Literal["torch", "numpy", "jax", "cupy"]
_FROM_DLPACK = {
    "torch": ("torch", "from_dlpack"),
    "numpy": ("numpy", "from_dlpack"),
    "jax": ("jax.dlpack", "from_dlpack"),
    "cupy": ("cupy", "from_dlpack"),
}


def check_framework(framework: str | None) -> None:
    """Check that a framework is known and installed."""
    if framework is None:
        return
    check_one_of("framework", framework, get_args(Framework))
    module = _FROM_DLPACK[framework][0]
    try:
        importlib.import_module(module)
    except ImportError:
        raise BadSetting(f"framework={framework!r}: {module} is not installed in this process") from None


def converted(tree: Tree, framework: Framework) -> Tree:
    """Turn every array and tensor of a batch into this framework's, without a copy (https://dmlc.github.io/dlpack).

    Without ``jax_enable_x64`` JAX turns 64-bit numbers into 32-bit ones. It
    copies those, and arrays that do not begin at a multiple of 64 bytes.
    """
    if framework == "numpy" and _is_numpy(tree):
        return tree
    module, function = _FROM_DLPACK[framework]
    from_dlpack = getattr(importlib.import_module(module), function)
    parts = describe(tree, whole=True, anywhere=True)
    leaves: list[Any] = []

    def turned(name: str, node: Array, leaf: Any) -> Any:
        if node.library in ("numpy scalar", framework):
            return leaf
        try:
            return from_dlpack(_exported(leaf) if framework == "jax" else leaf)
        except (TypeError, ValueError, RuntimeError, BufferError, AttributeError) as error:
            raise UnsupportedLeaf(
                f"leaf {name}, {node.library} {node.dtype} of shape {node.shape}, cannot become {framework}'s: "
                f"{error}. Have the source give numbers in its place, or leave framework= out"
            ) from None

    for name, node, leaf in zip(leaf_names(parts.layout), array_nodes(parts.layout), parts.leaves, strict=True):
        if isinstance(node, Ragged):
            values, offsets = (turned(name, node.items, each) for each in (leaf.values, leaf.offsets))
            leaves.append(RaggedRows(values, offsets))
        else:
            leaves.append(turned(name, node, leaf) if isinstance(node, Array) else leaf)
    return build(parts.layout, leaves)


def _is_numpy(tree: Tree) -> bool:
    """Whether nothing need be turned into NumPy's: looked at as far as is quicker than turning it."""
    if type(tree) is dict:
        return all(map(_is_numpy, cast("dict[Any, Tree]", tree).values()))
    if type(tree) is list:
        return _are_texts(tree) or are_scalars(cast("list[Any]", tree))
    return type(tree) is np.ndarray


def _are_texts(items: Any) -> bool:
    try:
        "".join(items)  # in a third of the time that a look at each type takes
    except TypeError:
        return False
    return True


def _exported(leaf: Any) -> Any:
    """Return a leaf that NumPy exports to JAX, which asks for DLPack's first version: it has no read-only arrays.

    JAX's own arrays cannot be written to, and the pages of a view stay read-only.
    """
    if type(leaf) is not np.ndarray:
        return leaf
    writable: Any = leaf[...]
    writable.flags.writeable = True
    _end_after_jax()
    when_gone(writable, among=_exports)
    return writable


_exports: dict[int, weakref.ref[Any]] = {}
"""Arrays whose memory JAX has, until it has let them go."""
_LETS_GO_S = 0.5


@cache
def _end_after_jax() -> None:
    """Have ``_wait_for_jax`` called when Python ends, before JAX's own end."""
    atexit.register(_wait_for_jax)


def _wait_for_jax() -> None:
    """Wait until threads of JAX have let go of what their last computations read.

    One that does so while Python ends aborts the process, as it cannot have Python's lock any more
    (https://github.com/python/cpython/issues/87135).
    """
    until_s = time.monotonic() + _LETS_GO_S
    while _exports and time.monotonic() < until_s:
        time.sleep(0.005)


Make = Callable[[], Tree]
"""Makes a batch of its leaves, once these have arrived."""


class BatchBuilder:
    """Collects the rows of one batch, block by block, so that each block can go at once."""

    def __init__(self, most: int, destination: Destination) -> None:
        self.rows = 0  # rows that it has; the caller adds those that it has copied
        self._most = most  # most rows that it will have
        self._destination = destination  # where rows are copied to
        self._layout: Node | None = None
        self._nodes: list[Leaf] = []
        self._row_bytes: list[int] = []
        self._parts: list[Any] = []

    def copy(self, block: ReceivedBlock, picked: slice | Ids, rows: int, to: int) -> None:
        """Copy some rows that a block has to row ``to`` of the batch; copying them again is harmless."""
        with self._destination.copying():
            if self._layout is None:
                self._begin(block)
            for i, leaf in enumerate(block.leaves):
                self._copy(i, leaf, block, picked, rows, to)

    @property
    def copied_bytes(self) -> int:
        return sum(self._row_bytes) * self.rows + _ragged_bytes(self._parts)

    def finish(self) -> Make:
        """Return what makes the batch, with the types of the source's batches."""
        assert self._layout is not None
        leaves = [self._leaf(node, part) for node, part in zip(self._nodes, self._parts, strict=True)]
        return partial(_made, self._layout, leaves)

    def _copy(self, i: int, leaf: Any, block: ReceivedBlock, picked: slice | Ids, rows: int, to: int) -> None:
        if isinstance(self._nodes[i], Strings):
            values = block.scalars(self._destination.bytes(leaf))
            self._parts[i][to:] = values[picked] if isinstance(picked, slice) else [values[k] for k in picked]
            return
        if isinstance(self._nodes[i], Ragged):
            offsets = block.offsets(i, self._destination.bytes)
            self._parts[i].copy(leaf, offsets, picked, to)
            return
        row_bytes = self._row_bytes[i]
        part = self._parts[i][to * row_bytes : (to + rows) * row_bytes]
        if isinstance(picked, slice):
            self._destination.copy(part, leaf[picked.start * row_bytes : picked.stop * row_bytes])
        elif row_bytes:
            self._destination.gather(part, leaf, picked, row_bytes)

    def _begin(self, block: ReceivedBlock) -> None:
        self._parts, self._row_bytes = [], []
        self._nodes = block.nodes
        for node, leaf in zip(block.nodes, block.leaves, strict=True):
            row_bytes = leaf.nbytes // block.stored if isinstance(node, Array) else 0
            self._row_bytes.append(row_bytes)
            if isinstance(node, Array):
                self._parts.append(self._destination.take(row_bytes * self._most))
            else:
                self._parts.append([] if isinstance(node, Strings) else RaggedCopy(node, self._destination))
        self._layout = block.placement.layout

    def _leaf(self, node: Leaf, part: Any) -> Any:
        if isinstance(node, Ragged):
            part.finish()
            return part
        if isinstance(node, Strings):
            return strings_from_bytes(node, part)
        if self.rows < self._most:
            part = part[: part.nbytes // self._most * self.rows]
        return self._destination.leaf(node, part, self.rows)


def _ragged_bytes(leaves: Sequence[Any]) -> int:
    nbytes = 0
    for leaf in leaves:
        if isinstance(leaf, RaggedCopy):
            nbytes += leaf.nbytes
    return nbytes


def _made(layout: Node, leaves: Sequence[Any]) -> Tree:
    return build(layout, [leaf.joined() if isinstance(leaf, RaggedCopy) else leaf for leaf in leaves])


def filled(tree: Tree, rows: int) -> Tree:
    """Return a batch of ``rows`` rows: a shorter one is filled with its first rows again."""
    parts = describe(tree, anywhere=True)
    if parts.rows >= rows:
        return tree
    picked = [i % parts.rows for i in range(rows)]
    leaves: list[Any] = []
    for node, leaf in zip(array_nodes(parts.layout), parts.leaves, strict=True):
        more: Any = [leaf[i] for i in picked] if isinstance(node, Strings) else leaf[picked]
        if isinstance(node, Ragged):
            more = RaggedRows(_pinned_as(leaf.values, more.values), _pinned_as(leaf.offsets, more.offsets))
        leaves.append(_pinned_as(leaf, more))
    return build(parts.layout, leaves)


def _pinned_as(leaf: Any, more: Any) -> Any:
    return more.pin_memory() if is_tensor(leaf) and leaf.is_pinned() else more


def whole_copy(block: ReceivedBlock, destination: Destination, rows: int | None) -> tuple[Make, int]:
    """Copy all of a block, of ``rows`` rows, or of a whole batch (None); return the copy and its size in bytes."""
    leaves: list[Any] = []
    copied = 0
    with destination.copying():
        for i, (node, leaf) in enumerate(zip(block.nodes, block.leaves, strict=True)):
            if not isinstance(node, Array):
                leaves.append(_copied(block, i, node, None, destination))
                continue
            memory = destination.take(leaf.nbytes)
            destination.copy(memory, leaf)
            copied += leaf.nbytes
            leaves.append(destination.leaf(node, memory, rows))
    return partial(_made, block.placement.layout, leaves), copied + _ragged_bytes(leaves)


def view(block: ReceivedBlock, picked: slice, destination: Destination, *, whole: bool) -> tuple[Make, int, int]:
    """Return views into the ring of some rows of a block, or of a whole batch; bytes copied; and bytes viewed.

    Ragged rows are copies.
    """
    leaves: list[Any] = []
    viewed = 0
    for i, (node, leaf) in enumerate(zip(block.nodes, block.leaves, strict=True)):
        if not isinstance(node, Array):
            leaves.append(_copied(block, i, node, None if whole else picked, destination))
            continue
        row_bytes = leaf.nbytes // block.stored
        seen = leaf if whole else leaf[picked.start * row_bytes : picked.stop * row_bytes]
        viewed += seen.nbytes
        leaves.append(destination.leaf(node, seen, None if whole else picked.stop - picked.start, writable=False))
    return partial(_made, block.placement.layout, leaves), _ragged_bytes(leaves), viewed


def _copied(
    block: ReceivedBlock, leaf: int, node: Strings | Ragged, picked: slice | None, destination: Destination
) -> Any:
    """Copy some rows of a leaf, or all of them."""
    if isinstance(node, Strings):
        values = block.scalars(destination.bytes(block.leaves[leaf]))
        return strings_from_bytes(node, values[picked] if picked else values)
    offsets = block.offsets(leaf, destination.bytes)
    copy = RaggedCopy(node, destination)
    with destination.copying():
        copy.copy(block.leaves[leaf], offsets, picked or slice(0, len(offsets) - 1), 0)
    copy.finish()
    return copy
