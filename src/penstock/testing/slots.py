"""What lies in a slot, as a tree again."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.contracts import Tree
from penstock.memory.slots import Filled, Slots
from penstock.tree import Strings, array_nodes, build, leaf_from_bytes, strings_from_bytes


def read_back(filled: Filled, slots: Slots) -> Tree:
    """A copy of the tree that somebody has left in a slot."""
    memory = slots.memory(filled.slot).copy()
    leaves: list[Any] = []
    for node, start, size in zip(array_nodes(filled.layout), filled.leaf_offsets, filled.leaf_bytes, strict=True):
        part = memory[start : start + size]
        if isinstance(node, Strings):
            leaves.append(strings_from_bytes(node, msgspec.msgpack.decode(part.tobytes())))
        else:
            leaves.append(leaf_from_bytes(node, part, filled.rows))
    return build(filled.layout, leaves)
