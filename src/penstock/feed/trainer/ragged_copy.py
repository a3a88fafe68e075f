"""Rows of different length on their way into a trainer's batch."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from penstock.contracts import Ids
from penstock.feed.trainer.destination import Destination
from penstock.tree import Array, Ragged, RaggedRows, item_bytes
from penstock.tree.ragged import offsets_of, positions

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
