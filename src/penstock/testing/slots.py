"""Rebuilds the tree in a slot."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.contracts import Tree
from penstock.memory.slots import Filled, Slots
from penstock.tree import Strings, array_nodes, build, leaf_from_bytes, strings_from_bytes


def read_back(filled: Filled, slots: Slots) -> Tree:
    """Copy the tree that was left in a slot."""
    memory = slots.memory(filled.slot).copy()
    leaves: list[Any] = []
    layout = filled.placement.layout
    for node, part in zip(array_nodes(layout), filled.placement.leaves_in(memory), strict=True):
        if isinstance(node, Strings):
            leaves.append(strings_from_bytes(node, msgspec.msgpack.decode(part.tobytes())))
        else:
            leaves.append(leaf_from_bytes(node, part, filled.rows))
    return build(layout, leaves)
