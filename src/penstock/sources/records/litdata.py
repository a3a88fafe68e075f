"""LitData's chunks, read by their layout.

Format: litdata 0.2.76, ``streaming/writer.py`` and ``serializers.py``. A chunk is the number of items, the offset
of each and of the end, and the items; an item is the size of each leaf of its tree, and then all leaves.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import msgspec

from penstock.errors import BadSetting
from penstock.sources.records import values
from penstock.sources.records.offsets import INDEX, OffsetRecords, Shard, decoded, opened
from penstock.sources.records.values import ColumnParser, Reader, Scalar, Shaped, StoredColumn

_Count = Annotated[int, msgspec.Meta(ge=0)]
_PROTOCOL = 1
_LOADER = "PyTreeLoader"


class _Chunk(msgspec.Struct):
    filename: str
    chunk_size: _Count
    chunk_bytes: _Count


class _Config(msgspec.Struct):
    data_format: list[str]
    data_spec: str | None = None
    compression: str | None = None
    compression_level: str | None = None
    encryption: Any = None
    item_loader: str | None = None


class _ChunkIndex(msgspec.Struct):
    chunks: list[_Chunk]
    config: _Config


class _TypeNode(msgspec.Struct):
    """A part of an item's tree: a leaf has no type."""

    type: str | None
    context: Any
    children_spec: list[_TypeNode]


class LitDataRecords(OffsetRecords):
    """The items of a folder of LitData's chunks, in their order. Attributes are those of ``FieldRecords``.

    A column is a leaf of an item's tree: ``"image"`` of a dict, ``"0"`` of a tuple, ``"box.0"`` of both.
    ``index.json`` lies in ``folder``, which may be a URL.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        root, text = opened(folder, "LitData's chunks")
        index = decoded(root, text, _ChunkIndex)
        config = index.config
        for what, value, known in (
            ("encrypted", config.encryption, (None,)),
            (f"written for {config.item_loader}", config.item_loader, (None, _LOADER)),
            (f"compressed by {config.compression_level}", config.compression_level, (None, "chunk")),
        ):
            if value not in known:
                raise BadSetting(f"{root} is {what}, which is not read: write it anew without ({known[-1]})")
        names = _names(root, config.data_spec)
        if not len({*names}) == len(names) == len(config.data_format):
            raise BadSetting(f"{root}/{INDEX} is damaged: it does not give each leaf one name and format")
        columns = [
            StoredColumn(name, *_format(kind)) for name, kind in zip(names, config.data_format, strict=True)
        ]
        chunks = [_described(chunk, config) for chunk in index.chunks]
        super().__init__(root, "LitData's chunks", chunks, ColumnParser(tuple(columns)))


def _described(chunk: _Chunk, config: _Config) -> Shard:
    table_bytes = 4 * chunk.chunk_size + 8  # which old versions left out of the size
    sizes = chunk.chunk_bytes, chunk.chunk_bytes + table_bytes
    plain = Shard(chunk.filename.replace(f".{config.compression}", ""), chunk.chunk_size, sizes)
    left = plain if plain.name != chunk.filename else None
    return Shard(chunk.filename, chunk.chunk_size, sizes, config.compression or "", left=left)


def _names(root: str, spec: str | None) -> list[str]:
    """Return the path of each leaf of an item's tree."""
    try:
        protocol, tree = json.loads(spec or "")
        if protocol == _PROTOCOL:
            return list(_leaves(msgspec.convert(tree, _TypeNode), ()))
        why = f"its version is {protocol!r}"
    except (ValueError, TypeError, RecursionError) as error:
        why = str(error)
    raise BadSetting(f"{root}/{INDEX}: the tree of its items (data_spec) cannot be read: {why}")


def _leaves(node: _TypeNode, path: tuple[str, ...]) -> Iterator[str]:
    kind = (node.type or "").rpartition(".")[2]
    keys: Iterable[Any] = range(len(node.children_spec))
    if kind in ("dict", "OrderedDict"):
        keys = json.loads(node.context)
    elif kind not in ("list", "tuple", "deque", ""):
        raise ValueError(f"no names are known for the leaves of a {node.type}")
    for key, child in zip(keys, node.children_spec, strict=True):
        yield from _leaves(child, (*path, str(key)))
    if not kind:
        yield ".".join(path) or "0"


def _format(written: str) -> tuple[str, Reader]:
    """Return the type of a leaf, and what reads its values."""
    if written in _PLAIN:
        return _PLAIN[written]
    kind, _, given = written.partition(":")
    if kind in _HEADLESS and (dtype := _HEADLESS[kind].get(int(given) if given.isdecimal() else -1)):
        return f"{dtype} array", Shaped(dtype)
    if kind == values.IMAGE or written == f"file:{values.JPEG}":
        return values.IMAGE, values.same
    if kind in _FILES:
        return values.BYTES, values.same
    return f"{written}, not read", values.Unread(written)


def _numpy(data: bytes) -> Any:
    kind, axes = struct.unpack_from("<II", data)
    return values.shaped(data[8 + 4 * axes :], _NUMPY[kind], struct.unpack_from(f"<{axes}I", data, 8))


def _tensor(data: bytes) -> Any:
    kind, axes = struct.unpack_from(">II", data)
    return values.shaped(data[8 + 4 * axes :], _TORCH[kind], struct.unpack_from(f">{axes}I", data, 8))


_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64", "complex64", "complex128", "bool")
_NUMPY = dict(enumerate(_INTEGERS + _FLOATS))
"""Types of NumPy's by number; those behind them hold objects, or text of any length."""
_TORCH = {
    **dict.fromkeys((0, 1), "float32"),
    **dict.fromkeys((2, 3), "float64"),
    **dict.fromkeys((4, 5), "complex64"),
    **dict.fromkeys((6, 7), "complex128"),
    **dict.fromkeys((8, 9), "float16"),
    11: "uint8",
    12: "int8",
    13: "int16",
    14: "int16",
    15: "int32",
    16: "int32",
    17: "int64",
    18: "int64",
    19: "bool",
    20: "uint16",
}
"""Types of torch's by number, most of which have two names."""
_HEADLESS = {"no_header_numpy": _NUMPY, "no_header_tensor": _TORCH}
_FILES = ("file", "video", "audio", "nifti", "mesh", "pdf", "tiff", "tifffile")
"""What is stored as its file was."""
_PLAIN: Mapping[str, tuple[str, Reader]] = {
    "int": ("int64", Scalar("int64")),
    "float": ("float64", Scalar("float64")),
    "bool": ("bool", Scalar("bool")),
    "str": (values.TEXT, values.text),
    "text": (values.TEXT, values.text),
    "bytes": (values.BYTES, values.same),
    "jpeg": (values.JPEG, values.same),
    "pil": ("uint8 array", values.pixels),
    "numpy": ("array", _numpy),
    "tensor": ("array", _tensor),
}
