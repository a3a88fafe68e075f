"""How a block lies in memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from penstock.memory.room import aligned
from penstock.tree import Constant, Node


class Placement(NamedTuple):
    """A block's tree, and where in the block each leaf lies.

    Attributes:
        layout: The tree.
        leaf_offsets: Bytes from the block's beginning, for each leaf in order.
        leaf_bytes: The size of each leaf.
        nbytes: Size of the block.
    """

    layout: Node
    leaf_offsets: tuple[int, ...]
    leaf_bytes: tuple[int, ...]
    nbytes: int

    @property
    def end(self) -> int:
        """Offset of the end of the last leaf."""
        return end_of_leaves(self.leaf_offsets, self.leaf_bytes)

    def leaves_in(self, memory: Any) -> list[Any]:
        """Slice a block's memory, on the host or on a GPU, into its leaves."""
        return [memory[start : start + n] for start, n in zip(self.leaf_offsets, self.leaf_bytes, strict=True)]


def place(layout: Node, leaf_bytes: Sequence[int]) -> Placement:
    """Place leaves one after the other, each aligned."""
    offsets = 0, *accumulate(map(aligned, leaf_bytes))
    return Placement(layout, offsets[:-1], tuple(leaf_bytes), offsets[-1])


EMPTY = place(Constant(None), ())
"""How a block lies that has no rows."""


def end_of_leaves(leaf_offsets: Sequence[int], leaf_bytes: Sequence[int]) -> int:
    """Return the offset of the end of the last leaf; 0 if there is none."""
    return max(map(sum, zip(leaf_offsets, leaf_bytes, strict=True)), default=0)
