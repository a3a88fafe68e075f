"""The structure of a block's tree, as nodes that travel in a message."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

Scalar = None | bool | int | float | str | bytes
SCALARS = (type(None), bool, int, float, str, bytes)
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


class Constant(msgspec.Struct, frozen=True, array_like=True, tag="constant"):
    """A number, string or None that belongs to the block, not to a row."""

    value: Any  # a Scalar, which msgspec cannot tell apart by type


class Branch(msgspec.Struct, frozen=True, array_like=True, tag="branch"):
    """A container: its type, keys and children.

    ``kind`` is the name of a builtin type; ``module:name`` for namedtuples and
    dataclasses, and with ``MAPPING`` before it for mappings.
    """

    kind: str
    keys: tuple[Any, ...]  # Scalars
    children: tuple[Node, ...]


Node = Array | Strings | Constant | Branch


def field_names(kind: Any) -> tuple[str, ...]:
    """Return the fields of a namedtuple or dataclass, in order."""
    if issubclass(kind, tuple):
        return kind._fields  # type: ignore[attr-defined]
    return tuple(field.name for field in dataclasses.fields(kind))


def array_nodes(layout: Node) -> Iterator[Array | Strings]:
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
    return f"{node.kind} of {len(node.children)}" + (f" with keys {list(node.keys)}" if node.keys else "")
