"""Takes a block's tree of arrays apart into leaves and their description."""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeGuard, cast

import msgspec
import numpy as np

from penstock.contracts import ByteArray, DeviceBytes, Tree
from penstock.errors import UnsupportedLeaf
from penstock.tree.layout import (
    MAPPING,
    MOST_DEPTH,
    SCALARS,
    Array,
    Branch,
    Constant,
    Leaf,
    Node,
    Ragged,
    Scalar,
    Strings,
    field_names,
    step,
)
from penstock.tree.ragged import RaggedRows


class Described(NamedTuple):
    """A tree taken apart: its description, its rows, and one leaf for each node that has one."""

    layout: Node
    rows: int
    leaves: list[Any]


def describe(tree: Tree, *, whole: bool = False, anywhere: bool = False) -> Described:
    """Take a block apart.

    It is any nesting of tuple, list, dict, namedtuple, dataclass and mappings that are made of a dict, with
    arrays, torch tensors, ``RaggedRows``, numbers, str, bytes and None at its leaves. Leaves may lie on a GPU if
    ``anywhere``. A ``whole`` block is handed on as it is (a feed of whole batches), so that its arrays need not
    have a row for each sample.
    """
    try:
        rows = first_rows(tree)
        walk = _Walk(None if whole else rows, anywhere, [])
        layout = walk.describe(tree, "", 0)
    except RecursionError:
        raise _too_deep("") from None
    return Described(layout, rows, walk.leaves)


def bytes_of(node: Leaf, leaf: Any) -> ByteArray:
    """Return a leaf's bytes: an array's own, in C order, a list's encoding, or what ``Ragged`` says."""
    if isinstance(node, Strings):
        return np.frombuffer(msgspec.msgpack.encode(leaf), np.uint8)
    if isinstance(node, Ragged):
        values, offsets = leaf.values, leaf.offsets
        if node.items.library == "torch":
            values, offsets = values.cpu(), offsets.cpu().numpy()
        words = offsets.copy()
        words[0] = len(leaf)
        return np.concatenate([words.view(np.uint8), bytes_of(node.items, values)])
    if node.library == "torch":
        if leaf.numel() == 0:
            return np.empty(0, np.uint8)
        return tensor_bytes(leaf).numpy()
    return np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)


def tensor_bytes(leaf: Any) -> DeviceBytes:
    """Return a tensor's bytes in C order, as a tensor on its device."""
    flat = leaf.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    flat = flat.as_strided(flat.shape, (1,))  # a single element may have any stride
    return flat.view(sys.modules["torch"].uint8)


class _Walk(NamedTuple):
    """Describes the parts of a tree, and takes its leaves."""

    rows: int | None  # that every array must have; None for a block that is taken whole
    anywhere: bool
    leaves: list[Any]

    def describe(self, tree: Tree, path: str, depth: int) -> Node:
        if depth > MOST_DEPTH:
            raise _too_deep(path)
        if type(tree) is np.ndarray:  # what most are, before what takes longer to ask
            return self._array(tree, path)
        if _is_named(tree):
            fields = field_names(type(tree))
            values = [getattr(tree, field) for field in fields]
            return self._branch(path, depth, _name_of(tree, path), fields, values)
        if _is_sequence(tree):
            if type(tree) not in (list, tuple):
                raise _unsupported(path, tree, "pass a plain list or tuple, a namedtuple or a dataclass")
            kind = "list" if isinstance(tree, list) else "tuple"
            if _is_row_list(tree, self.rows):
                _check_scalars(tree, path, kind)
                self.leaves.append(tree)
                return Strings(kind)
            return self._branch(path, depth, kind, (), tree)
        if _is_mapping(tree):
            for key in tree:
                if type(key) not in SCALARS:
                    raise _unsupported(path, key, "as a key; keys are str, bytes, numbers or None")
            return self._branch(path, depth, _mapping_kind(tree, path), tuple(tree), list(tree.values()))
        if type(tree) in SCALARS:
            _check_scalar(tree, path)
            return Constant(tree)
        if isinstance(tree, RaggedRows):
            return self._ragged(tree, path)
        return self._array(tree, path)

    def _branch(
        self, path: str, depth: int, kind: str, keys: tuple[Scalar, ...], children: Sequence[Any]
    ) -> Branch:
        named = zip(keys or range(len(children)), children, strict=True)
        nodes = (self.describe(child, step(path, kind, name), depth + 1) for name, child in named)
        return Branch(kind, keys, tuple(nodes))

    def _array(self, leaf: Any, path: str) -> Array:
        library: Literal["numpy", "numpy scalar", "torch"]
        dtype: str
        shape: tuple[int, ...]
        kind = ""
        if issubclass(type(leaf), np.generic):
            library, dtype, shape = "numpy scalar", leaf.dtype.str, ()
        elif type(leaf) is np.ndarray:
            library, dtype, shape = "numpy", leaf.dtype.str, leaf.shape
        elif (torch := sys.modules.get("torch")) and isinstance(leaf, torch.Tensor):
            if type(leaf) is not torch.Tensor:
                kind, leaf = _name_of(leaf, path), _plain_tensor(leaf, path)
            if leaf.layout is not torch.strided or leaf.is_quantized:
                raise _unsupported(path, leaf, f"its layout is {leaf.layout}; send its parts as dense tensors")
            if leaf.device.type != "cpu" and not self.anywhere:
                remedy = "let the loader make CPU tensors, the trainer moves them"
                raise _unsupported(path, leaf, f"it lies on {leaf.device}; {remedy}")
            library, dtype, shape = "torch", str(leaf.dtype).removeprefix("torch."), tuple(leaf.shape)
        else:
            raise _unsupported(path, leaf, "send arrays, tensors, numbers, str, bytes or None")
        if library != "torch" and not _is_plain(leaf.dtype):
            raise _unsupported(path, leaf, f"its dtype is {leaf.dtype}; send numbers, or fields one by one")
        self.leaves.append(leaf)
        if self.rows is None:
            return Array(library, dtype, shape, kind)
        self._check_rows(shape[:1], f"shape {shape}" if shape else "no row axis", path)
        return Array(library, dtype, shape[1:], kind)

    def _ragged(self, leaf: RaggedRows, path: str) -> Ragged:
        self.leaves.append(leaf)
        self._check_rows((len(leaf),), f"{len(leaf)} ragged rows", path)
        items = _Walk(None, self.anywhere, [])._array(leaf.values, step(path, ":", "values"))
        if items.kind or 0 in items.shape[1:]:
            raise _unsupported(path, leaf, "let its values be a plain array or tensor, of items that have bytes")
        return Ragged(Array(items.library, items.dtype, items.shape[1:]), leaf.give)

    def _check_rows(self, rows: tuple[int, ...], seen: str, path: str) -> None:
        if self.rows is not None and rows != (self.rows,):
            raise UnsupportedLeaf(
                f"leaf {path or 'batch'} has {seen}, where other leaves of the block have {self.rows} rows. Every "
                "array needs a row for each sample, or batches cannot be cut to another size; if they are meant "
                "to be taken whole (dynamic padding, detection), pass whole_batches=True to the feeder or share()"
            )


def _check_scalars(values: Sequence[Any], path: str, kind: str) -> None:
    if not {*map(type, values)} & {int, str}:
        return
    try:
        msgspec.msgpack.encode(values)  # many times as fast as one by one
    except (OverflowError, UnicodeEncodeError):
        for i, value in enumerate(values):
            _check_scalar(value, step(path, kind, i))


def _check_scalar(value: Scalar, path: str) -> None:
    if type(value) is int and not -(2**63) <= value < 2**64:
        raise _unsupported(path, value, f"{value} does not fit 64 bits; send it as a str")
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            remedy = "it is no valid Unicode; send it as bytes, such as os.fsencode gives for a file's name"
            raise _unsupported(path, value, remedy) from None


def first_rows(tree: Tree) -> int:
    """Count the rows of the first array or tensor, else of the first list of scalars, else 1."""
    lists: list[int] = []

    def visit(node: Tree) -> int | None:
        if type(node) is np.ndarray and node.ndim:
            return len(node)
        if _is_named(node):
            node = [getattr(node, field) for field in field_names(type(node))]
        elif _is_mapping(node):
            node = list(node.values())
        if _is_sequence(node):
            if node and are_scalars(node):
                lists.append(len(node))
                return None
            return next((rows for item in node if (rows := visit(item)) is not None), None)
        if isinstance(node, RaggedRows):
            return len(node)
        shape: Any = getattr(node, "shape", None)
        return int(shape[0]) if shape else None

    rows = visit(tree)
    return rows if rows is not None else (lists[0] if lists else 1)


def _is_row_list(items: Sequence[Any], rows: int | None) -> bool:
    """Whether a list holds one scalar per row, or any scalars if the block is taken whole."""
    return len(items) > 0 and rows in (len(items), None) and are_scalars(items)


def are_scalars(items: Sequence[Any]) -> bool:
    """Whether a list holds numbers, strings, bytes and None only."""
    return {*map(type, items)} <= SCALARS


def _is_sequence(tree: Tree) -> TypeGuard[Sequence[Any]]:
    return isinstance(tree, (list, tuple))


def _is_mapping(tree: Tree) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(tree, Mapping)


_made_of_a_dict: dict[type[Any], bool] = {}


def _mapping_kind(tree: Mapping[Any, Any], path: str) -> str:
    """Name a mapping's type, which trainers will call with a dict."""
    kind: Any = type(tree)
    if kind in (dict, OrderedDict):
        return kind.__name__
    if kind not in _made_of_a_dict:
        try:
            _made_of_a_dict[kind] = list(kind(dict(tree))) == list(tree)
        except Exception:  # whatever a user's type raises
            _made_of_a_dict[kind] = False
    if not _made_of_a_dict[kind]:
        raise _unsupported(path, tree, "it cannot be made of a dict; pass a plain dict: dict(batch)")
    return MAPPING + _name_of(tree, path)


def _plain_tensor(leaf: Any, path: str) -> Any:
    """Return a tensor of a subclass as a plain one, over the memory that it has."""
    torch, kind = sys.modules["torch"], cast("Any", type(leaf))
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise _unsupported(path, leaf, "it handles its memory by itself (__torch_dispatch__); send plain tensors")
    if lost := ", ".join(cast("dict[str, Any]", vars(leaf))):
        raise _unsupported(path, leaf, f"its attributes ({lost}) would be lost; send them beside a plain tensor")
    return leaf.as_subclass(torch.Tensor)


def _is_named(tree: Tree) -> bool:
    """Whether it is a namedtuple or an instance of a dataclass."""
    if isinstance(tree, tuple):
        return hasattr(tree, "_fields")  # pyright: ignore[reportUnknownArgumentType]
    return dataclasses.is_dataclass(tree) and not isinstance(tree, (type, Mapping))


def _is_plain(dtype: Any) -> bool:
    """Whether a NumPy dtype's short name says all: no objects, fields or extensions."""
    return not dtype.hasobject and np.dtype(dtype.str) == dtype


def _name_of(tree: Tree, path: str) -> str:
    kind = tree.__class__
    if "<locals>" in kind.__qualname__:
        raise _unsupported(path, tree, "define the type at the top of a module, so that trainers can find it")
    # In a spawned worker the main module has another name.
    module = "__main__" if kind.__module__ == "__mp_main__" else kind.__module__
    return f"{module}:{kind.__qualname__}"


def _too_deep(path: str) -> UnsupportedLeaf:
    return UnsupportedLeaf(
        f"a batch's containers lie more than {MOST_DEPTH} deep in one another (leaf {path[:100] or 'batch'}…), or "
        "one holds itself: flatten it"
    )


def _unsupported(path: str, leaf: Any, remedy: str) -> UnsupportedLeaf:
    kind = leaf.__class__
    return UnsupportedLeaf(
        f"leaf {path or 'batch'} of type {kind.__module__}.{kind.__qualname__} cannot travel: {remedy}"
    )
