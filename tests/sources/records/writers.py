"""Writes MDS shards and LitData's chunks byte for byte as the originals do; `make test-formats` compares."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

DTYPES = {
    "uint8": 8,
    "int8": 9,
    "uint16": 16,
    "int16": 17,
    "float16": 18,
    "uint32": 32,
    "int32": 33,
    "float32": 34,
    "uint64": 64,
    "int64": 65,
    "float64": 66,
}
NUMPY = [
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"),
    *("complex64", "complex128", "bool"),
]
TORCH = {"float32": 1, "float64": 3, "float16": 9, "uint8": 11, "int64": 18, "bool": 19}


def chunk(items: Sequence[bytes], between: bytes = b"") -> bytes:
    """A table of offsets, something between, and the items."""
    first = 8 + 4 * len(items) + len(between)
    offsets = np.cumsum([first, *map(len, items)], dtype=np.uint32)
    return struct.pack("<I", len(items)) + offsets.tobytes() + between + b"".join(items)


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


def write_mds(
    folder: Path,
    columns: Mapping[str, str],
    samples: Sequence[Mapping[str, Any]],
    each: int = 4,
    compression: str | None = None,
) -> Path:
    """Write shards of so many samples as ``MDSWriter`` does."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(columns)
    settings = {
        "version": 2,
        "format": "mds",
        "compression": compression,
        "hashes": [],
        "size_limit": 1 << 26,
        "column_names": names,
        "column_encodings": [columns[name] for name in names],
        "column_sizes": [mds_size(columns[name]) for name in names],
    }
    config = json.dumps(settings, sort_keys=True).encode()
    shards: list[Any] = []
    for number, first in enumerate(range(0, len(samples), each)):
        some = samples[first : first + each]
        raw = chunk([_mds_sample(columns, sample) for sample in some], config)
        name = f"shard.{number:05}.mds"
        packed = None if compression is None else zstd(raw)
        shards.append(
            {
                **settings,
                "samples": len(some),
                "raw_data": {"basename": name, "bytes": len(raw), "hashes": {}},
                "zip_data": packed and {"basename": f"{name}.zstd", "bytes": len(packed), "hashes": {}},
            }
        )
        (folder / (name if packed is None else f"{name}.zstd")).write_bytes(packed or raw)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}, sort_keys=True))
    return folder


def mds_size(encoding: str) -> int | None:
    """The size of a column's values, if it is always the same."""
    kind, *given = encoding.split(":")
    if kind == "ndarray" and len(given) == 2:
        return int(np.prod([int(each) for each in given[1].split(",")])) * np.dtype(given[0]).itemsize
    return 8 if kind == "int" else np.dtype(kind).itemsize if kind in DTYPES else None


def _mds_sample(columns: Mapping[str, str], sample: Mapping[str, Any]) -> bytes:
    sizes, data = b"", b""
    for name in sorted(columns):
        value = mds_value(columns[name], sample[name])
        if mds_size(columns[name]) is None:
            sizes += struct.pack("<I", len(value))
        data += value
    return sizes + data


def mds_value(encoding: str, value: Any) -> bytes:
    kind, *given = encoding.split(":")
    if isinstance(value, bytes):
        return value
    if kind == "ndarray":
        power = next(power for power in range(4) if max(value.shape) < 1 << (8 << power))
        shape = np.array(value.shape, f"<u{1 << power}").tobytes()
        head = b"" if given else bytes([DTYPES[value.dtype.name]])
        return head + (b"" if len(given) == 2 else bytes([value.ndim << 2 | power]) + shape) + value.tobytes()
    if kind == "int" or kind in DTYPES:
        return np.dtype("int64" if kind == "int" else kind).type(value).tobytes()
    return (json.dumps(value) if kind == "json" else str(value)).encode()


LEAF: Mapping[str, Callable[[Any], bytes]] = {
    "int": lambda value: struct.pack("<q", value),
    "float": lambda value: struct.pack("<d", value),
    "bool": lambda value: bytes([int(value)]),
    "str": str.encode,
    "bytes": bytes,
    "jpeg": bytes,
    "numpy": lambda value: (
        struct.pack(f"<II{value.ndim}I", NUMPY.index(value.dtype.name), value.ndim, *value.shape) + value.tobytes()
    ),
    "tensor": lambda value: (
        struct.pack(f">II{value.ndim}I", TORCH[value.dtype.name], value.ndim, *value.shape) + value.tobytes()
    ),
    "no_header_numpy": lambda value: value.tobytes(),
    "no_header_tensor": lambda value: value.tobytes(),
}


def write_litdata(
    folder: Path,
    leaves: Mapping[str, str],
    items: Sequence[Mapping[str, Any]],
    each: int = 4,
    compression: str | None = None,
) -> Path:
    """Write chunks of so many items, which are flat dicts, as ``BinaryWriter`` does."""
    folder.mkdir(parents=True, exist_ok=True)
    chunks: list[Any] = []
    for number, first in enumerate(range(0, len(items), each)):
        some = items[first : first + each]
        raw = chunk([litdata_item(leaves, item) for item in some])
        name = f"chunk-0-{number}.bin"
        if compression:
            name = f"chunk-0-{number}.{compression}.bin"
        (folder / name).write_bytes(zstd(raw) if compression else raw)
        chunks.append({"chunk_bytes": len(raw), "chunk_size": len(some), "dim": None, "filename": name})
    leaf = {"type": None, "context": None, "children_spec": []}
    tree = {"type": "builtins.dict", "context": json.dumps([*leaves]), "children_spec": [leaf] * len(leaves)}
    config = {
        "chunk_bytes": None,
        "chunk_size": each,
        "compression": compression,
        "compression_level": None,
        "data_format": [*leaves.values()],
        "data_spec": json.dumps([1, tree]),
        "encryption": None,
        "item_loader": "PyTreeLoader",
    }
    (folder / "index.json").write_text(json.dumps({"chunks": chunks, "config": config}, sort_keys=True))
    return folder


def litdata_item(leaves: Mapping[str, str], item: Mapping[str, Any]) -> bytes:
    data = [LEAF[kind.partition(":")[0]](item[name]) for name, kind in leaves.items()]
    return struct.pack(f"<{len(data)}I", *map(len, data)) + b"".join(data)
