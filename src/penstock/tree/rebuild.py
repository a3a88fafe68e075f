"""Rebuilds a block's tree from its leaves, with its types."""

from __future__ import annotations

import dataclasses
import math
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, cast

import msgspec
import numpy as np

from penstock.basics.tracebacks import users_stacklevel
from penstock.contracts import ByteArray, DeviceBytes, Tree
from penstock.errors import UnsupportedLeaf
from penstock.tree.layout import MAPPING, Array, Branch, Constant, Leaf, Node, Ragged, Scalar, Strings, field_names
from penstock.tree.ragged import RaggedRows


def build(layout: Node, leaves: Sequence[Any]) -> Tree:
    """Build the tree of a layout, from ``leaves`` in the order in which ``describe`` gave them.

    Warns:
        UserWarning: a mapping or tensor is of a type that this process has not imported, and is a dict or tensor.
    """
    return _build(layout, iter(leaves))


def leaf_from_bytes(node: Array, memory: ByteArray, rows: int | None, *, writable: bool = True) -> Any:
    """Make an array or tensor over ``memory``, which it holds alive; ``rows`` is its first axis unless None."""
    shape = node.shape if rows is None else (rows, *node.shape)
    if node.library == "torch":
        torch, dtype = _torch(node.dtype)
        if memory.nbytes == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(memory, dtype=dtype).view(shape)
    array = memory.view(np.dtype(node.dtype)).reshape(shape)
    array.flags.writeable = writable
    return array[()] if node.library == "numpy scalar" else array


@cache
def _torch(dtype: str) -> tuple[Any, Any]:
    """Import torch; return it, and its type of this name."""
    try:
        import torch
    except ImportError:
        raise UnsupportedLeaf(
            "the feed's batches hold torch tensors, and torch is not installed in this process: "
            'pip install "penstock[torch]"'
        ) from None
    return torch, getattr(torch, dtype)


def device_leaf(node: Array, memory: DeviceBytes, rows: int | None) -> Any:
    """Make a tensor over memory of a GPU; ``rows`` is its first axis unless None."""
    import torch

    if node.library == "torch":
        dtype = getattr(torch, node.dtype)
    else:
        try:
            dtype = torch.as_tensor(np.empty(0, np.dtype(node.dtype))).dtype
        except (TypeError, ValueError):  # a date, or numbers of the other byte order
            raise UnsupportedLeaf(
                f"a leaf is a NumPy array of {node.dtype}, which no tensor on a GPU can hold; let the source "
                "give numbers, or leave device (of a feed with a transform, memory) out"
            ) from None
    shape = node.shape if rows is None else (rows, *node.shape)
    if memory.nbytes == 0:
        return torch.empty(shape, dtype=dtype, device=memory.device)
    return memory.view(dtype).view(shape)


def strings_from_bytes(node: Strings, values: list[Scalar]) -> Any:
    return tuple(values) if node.kind == "tuple" else values


def item_bytes(node: Ragged) -> int:
    """Return the size of an item of ragged rows; UnsupportedLeaf is raised if torch is missing."""
    empty = leaf_from_bytes(node.items, np.empty(0, np.uint8), 0)
    return math.prod(node.items.shape) * empty.dtype.itemsize


def trusted_leaf(node: Leaf, memory: ByteArray, rows: int | None) -> Any:
    """Make any leaf over bytes of this process's own; ``rows`` as in ``leaf_from_bytes``."""
    if isinstance(node, Strings):
        return strings_from_bytes(node, msgspec.msgpack.decode(memory.tobytes()))
    if isinstance(node, Array):
        return leaf_from_bytes(node, memory, rows)
    words = int(memory[:8].view(np.int64)[0]) + 1
    offsets = memory[: 8 * words].view(np.int64).copy()
    offsets[0] = 0
    return RaggedRows(leaf_from_bytes(node.items, memory[8 * words :], int(offsets[-1])), offsets, node.give)


def joined(node: Leaf, leaves: Sequence[Any]) -> Any:
    """Join the rows of one leaf of several blocks, on the host."""
    if isinstance(node, Ragged):
        return RaggedRows.concatenated(leaves)
    if isinstance(node, Strings):
        return strings_from_bytes(node, [value for leaf in leaves for value in leaf])
    return np.concatenate(leaves)


def _build(node: Node, leaves: Iterator[Any]) -> Tree:
    if isinstance(node, Constant):
        return node.value
    if not isinstance(node, Branch):
        leaf = next(leaves)
        return _as_subclass(leaf, node.kind) if isinstance(node, Array) and node.kind else leaf
    children = [_build(child, leaves) for child in node.children]
    if node.kind == "tuple":
        return tuple(children)
    if node.kind == "list":
        return children
    if node.kind in ("dict", "OrderedDict"):
        return _DICTS[node.kind](zip(node.keys, children, strict=True))
    if node.kind.startswith(MAPPING):
        kind = _type_or(dict, Mapping, node.kind.removeprefix(MAPPING))
        return kind(dict(zip(node.keys, children, strict=True)))
    make, positional = _type_named(node.kind, node.keys)
    if positional:
        return make(*children)
    rebuilt = object.__new__(make)  # not __init__: it may convert, check or count
    for field, child in zip(node.keys, children, strict=True):
        object.__setattr__(rebuilt, str(field), child)
    return rebuilt


_DICTS: dict[str, Callable[[Any], Any]] = {"dict": dict, "OrderedDict": OrderedDict}


def _as_subclass(leaf: Any, name: str) -> Any:
    torch = sys.modules.get("torch")
    if torch is None or type(leaf) is not torch.Tensor:  # it has become another framework's
        return leaf
    return leaf.as_subclass(_type_or(torch.Tensor, torch.Tensor, name))


_warned_of: set[str] = set()


def _type_or(plain: type[Any], base: type[Any], name: str) -> Any:
    """Find the subclass of ``base`` that a feeder named; return ``plain``, with one warning, if it is not here."""
    kind = _imported(name)
    if kind is not None and issubclass(kind, base):
        return kind
    if name not in _warned_of:
        _warned_of.add(name)
        module = name.partition(":")[0]
        warnings.warn(
            f"the feed's batches hold a {name}, which this process has not imported: it gets a plain "
            f"{plain.__name__} instead. Import {module} in the training script to get that type",
            stacklevel=users_stacklevel(),
        )
    return plain


def _imported(name: str) -> type[Any] | None:
    """Find a type, ``module:name``, in the modules that this process has imported.

    An import runs code, and a feeder must not choose what code a trainer runs.
    Nothing is unpickled.
    """
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        if found is None:
            return None
        found = vars(found).get(part)  # not getattr, which makes some modules import others
        if not isinstance(found, type):
            return None
    return cast("type[Any]", found)


@cache
def _type_named(name: str, keys: tuple[Scalar, ...]) -> tuple[type[Any], bool]:
    """Find the namedtuple or dataclass that a feeder named; return it, and whether it is built by position."""
    module = name.partition(":")[0]
    if module not in sys.modules:
        raise UnsupportedLeaf(
            f"the feed's batches are of type {name}, and this process has not imported {module}: import {module} "
            "in the training script. Where that fails, put the type in a module that both the loader and the "
            "training script can import"
        )
    kind = _imported(name)
    if kind is None or not (_is_namedtuple(kind) or dataclasses.is_dataclass(kind)):
        raise UnsupportedLeaf(f"the feed's batches are of type {name}, which is no namedtuple or dataclass here")
    if field_names(kind) != keys:
        raise UnsupportedLeaf(
            f"the feed's batches are of type {name} with fields {list(keys)}, which has {list(field_names(kind))} "
            "here: run the feeder and the training script with the same code"
        )
    return kind, issubclass(kind, tuple)


def _is_namedtuple(kind: Any) -> bool:
    return issubclass(kind, tuple) and hasattr(cast("object", kind), "_fields")
