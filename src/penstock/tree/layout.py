"""The structure of a block's tree, as nodes that travel in a message, and the bytes that its leaves take."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np

from penstock.tree.ragged import Give

Scalar = None | bool | int | float | str | bytes
SCALARS = frozenset((type(None), bool, int, float, str, bytes))
MOST_DEPTH = 100
"""Deepest nesting of containers, as trees are walked by recursion."""


MAPPING = "mapping "
"""What the kind of a ``Branch`` begins with whose type is made of a dict."""


class Array(msgspec.Struct, frozen=True, array_like=True, tag="array"):
    """An array leaf.

    ``shape`` leaves out the row axis, unless blocks are taken whole. ``kind`` is
    the type of a tensor whose type is a subclass of ``Tensor``: ``module:name``.
    """

    library: Literal["numpy", "numpy scalar", "torch"]
    dtype: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0, le=2**48)], ...]
    kind: str = ""


class Strings(msgspec.Struct, frozen=True, array_like=True, tag="rows"):
    """A list or tuple with one scalar per row, such as file names."""

    kind: Literal["list", "tuple"]


class Ragged(msgspec.Struct, frozen=True, array_like=True, tag="ragged"):
    """Rows of different length: ``RaggedRows``.

    ``items`` are its values, whose shape is that of an item. The leaf's bytes are int64 words, the number of its
    rows and where each of them ends, and then the values.
    """

    items: Array
    give: Give


class Constant(msgspec.Struct, frozen=True, array_like=True, tag="constant"):
    """A number, string or None that belongs to the block, not to a row."""

    value: Any  # a Scalar, whose types msgspec cannot distinguish


class Branch(msgspec.Struct, frozen=True, array_like=True, tag="branch"):
    """A container: its type, keys and children.

    ``kind`` is the name of a builtin type; ``module:name`` for namedtuples and
    dataclasses, and with ``MAPPING`` before it for mappings.
    """

    kind: str
    keys: tuple[Any, ...]  # Scalars
    children: tuple[Node, ...]


Leaf = Array | Strings | Ragged
Node = Leaf | Constant | Branch


def field_names(kind: Any) -> tuple[str, ...]:
    """Return the fields of a namedtuple or dataclass, in order."""
    if issubclass(kind, tuple):
        return kind._fields  # type: ignore[attr-defined]
    return tuple(field.name for field in dataclasses.fields(kind))


def array_nodes(layout: Node) -> Iterator[Leaf]:
    """Yield the nodes that have a leaf, in order."""
    if isinstance(layout, Branch):
        for child in layout.children:
            yield from array_nodes(child)
    elif not isinstance(layout, Constant):
        yield layout


def leaf_names(layout: Node, path: str = "") -> Iterator[str]:
    """Yield the path of each node that has a leaf, such as ``batch['image']``, in that order."""
    if isinstance(layout, Branch):
        for i, child in enumerate(layout.children):
            yield from leaf_names(child, step(path, layout.kind, layout.keys[i] if layout.keys else i))
    elif not isinstance(layout, Constant):
        yield path or "batch"


def difference(before: Node, after: Node, path: str = "") -> str | None:
    """Say where two layouts first differ; None if they are equal."""
    if before == after:
        return None
    if isinstance(before, Branch) and isinstance(after, Branch) and _same_container(before, after):
        for i, (one, other) in enumerate(zip(before.children, after.children, strict=True)):
            key = before.keys[i] if before.keys else i
            if found := difference(one, other, step(path, before.kind, key)):
                return found
    return f"leaf {path or 'batch'}: {_words(before)} before, {_words(after)} now"


def same_but_for_shapes(before: Node, after: Node) -> bool:
    """Whether two layouts differ only in lengths (of axes and lists) and values of constants."""
    if isinstance(before, Branch) and isinstance(after, Branch):
        if before.kind in ("list", "tuple") and len(before.children) != len(after.children):
            return before.kind == after.kind  # one entry per sample, such as detection's boxes
        return _same_container(before, after) and all(map(same_but_for_shapes, before.children, after.children))
    if isinstance(before, Array) and isinstance(after, Array):
        return (before.library, before.dtype, len(before.shape), before.kind) == (
            after.library,
            after.dtype,
            len(after.shape),
            after.kind,
        )
    if isinstance(before, Ragged) and isinstance(after, Ragged):
        return before.give == after.give and same_but_for_shapes(before.items, after.items)
    return type(before) is type(after)


def _same_container(one: Branch, other: Branch) -> bool:
    return (one.kind, one.keys, len(one.children)) == (other.kind, other.keys, len(other.children))


def step(path: str, kind: str, key: Scalar) -> str:
    if ":" in kind and not kind.startswith(MAPPING):
        return f"{path or 'batch'}.{key}"
    return f"{path or 'batch'}[{key!r}]"


def _words(node: Node) -> str:
    if isinstance(node, Array):
        return f"{node.kind or node.library} {node.dtype} of shape (…{''.join(f', {n}' for n in node.shape)})"
    if isinstance(node, Constant):
        return f"{type(node.value).__name__} {node.value!r}"
    if isinstance(node, Strings):
        return f"a {node.kind} of one scalar a row"
    if isinstance(node, Ragged):
        return f"ragged rows, given {node.give}, of {_words(node.items)}"
    return f"{node.kind} of {len(node.children)}" + (f" with keys {list(node.keys)}" if node.keys else "")


_MOST_AXES = 32
_MOST_BYTES = 2**62


class LeafSize(NamedTuple):
    """Bytes of an array, or of one row unless blocks are taken whole, and their alignment."""

    nbytes: int
    alignment: int


def leaf_sizes(layout: Node) -> list[LeafSize | None]:
    """Return the size of each leaf, in order; None for scalars and ragged rows, which can have any."""
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
        if isinstance(node, Ragged) and ((size := _array_size(node.items)) is not None and not size.nbytes):
            raise ValueError("ragged rows of items without bytes")
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
    """Return the size of an item; None for a torch type without torch: the first batch shows it."""
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
