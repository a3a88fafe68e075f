"""How many bytes the leaves of a layout take, and whether a layout from another process makes sense."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from penstock.tree.layout import MAPPING, MOST_DEPTH, SCALARS, Array, Branch, Constant, Node

_MOST_AXES = 32
_MOST_BYTES = 2**62


class LeafSize(NamedTuple):
    """Bytes of an array, or of one row unless blocks are taken whole, and their alignment."""

    nbytes: int
    alignment: int


def leaf_sizes(layout: Node) -> list[LeafSize | None]:
    """Return the size of each leaf, in order; None for a list of scalars, which can have any.

    Raises:
        ValueError: no tree of arrays has this layout; the message says why.
    """
    sizes: list[LeafSize | None] = []
    _walk(layout, sizes, 0)
    return sizes


def _walk(node: Node, sizes: list[LeafSize | None], depth: int) -> None:
    if depth > MOST_DEPTH:
        raise ValueError(f"a tree of more than {MOST_DEPTH} levels")
    if isinstance(node, Branch):
        _check_keys(node)
        for child in node.children:
            _walk(child, sizes, depth + 1)
    elif isinstance(node, Constant):
        if type(node.value) not in SCALARS:
            raise ValueError(f"a constant of type {type(node.value).__name__}")
    else:
        sizes.append(_array_size(node) if isinstance(node, Array) else None)


def _check_keys(node: Branch) -> None:
    if node.kind in ("list", "tuple"):
        right = not node.keys
    elif node.kind in ("dict", "OrderedDict") or node.kind.startswith(MAPPING):
        right = len(node.keys) == len(node.children) and all(type(key) in SCALARS for key in node.keys)
    else:
        right = ":" in node.kind and len(node.keys) == len(node.children)
        right = right and all(isinstance(key, str) for key in node.keys)
    if not right:
        raise ValueError(f"a {node.kind[:100]} of {len(node.children)} with {len(node.keys)} keys")


def _array_size(node: Array) -> LeafSize | None:
    item_bytes = _item_bytes(node.library, node.dtype)
    if item_bytes is None:
        return None
    if len(node.shape) > _MOST_AXES or math.prod(max(n, 1) for n in node.shape) * item_bytes > _MOST_BYTES:
        raise ValueError(f"an array with axes of {str(node.shape)[:200]}")
    # Items of 12 bytes, such as three characters, lie at multiples of 4.
    return LeafSize(math.prod(node.shape) * item_bytes, item_bytes & -item_bytes)


@lru_cache(maxsize=256)
def _item_bytes(library: str, dtype: str) -> int | None:
    """Return the size of an item; None for a torch type without torch, of which the first batch tells."""
    if library == "torch":
        try:
            import torch
        except ImportError:
            return None
        kind: Any = vars(torch).get(dtype)  # not getattr, which makes torch import more of itself
        try:
            torch.frombuffer(bytearray(16), dtype=kind)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"a tensor of {dtype[:100]!r}, which is no type of torch's") from None
        return kind.itemsize
    try:
        found = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError, LookupError, OverflowError, RecursionError):
        found = None
    if found is None or found.str != dtype or found.hasobject or not found.itemsize:
        raise ValueError(f"an array of {dtype[:100]!r}, which is no type of plain numbers or text")
    return found.itemsize
