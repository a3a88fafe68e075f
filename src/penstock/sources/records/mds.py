"""MosaicML's shards (MDS), read by their layout.

Format: mosaicml-streaming 0.13, ``streaming/base/format/mds``: ``writer.py`` and ``encodings.py``. A shard is the
number of samples, the offset of each and of the end, its settings in JSON, and the samples; a sample is the sizes
of those columns whose size differs, and then all columns.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import msgspec
import numpy as np

from penstock.errors import BadSetting
from penstock.sources.records import values
from penstock.sources.records.offsets import INDEX, OffsetRecords, Shard, decoded, opened
from penstock.sources.records.values import ColumnParser, Reader, Scalar, Shaped, StoredColumn, shaped

_VERSION = 2
_Count = Annotated[int, msgspec.Meta(ge=0)]


class _MdsFile(msgspec.Struct):
    basename: str
    bytes: _Count
    hashes: dict[str, str] = {}


class _Shard(msgspec.Struct):
    version: int
    format: str
    samples: _Count
    raw_data: _MdsFile
    zip_data: _MdsFile | None = None
    compression: str | None = None
    column_names: tuple[str, ...] = ()
    column_encodings: tuple[str, ...] = ()
    column_sizes: tuple[_Count | None, ...] = ()

    @property
    def columns(self) -> tuple[tuple[str, ...], ...]:
        return self.column_names, self.column_encodings, tuple(map(str, self.column_sizes))


class _MdsIndex(msgspec.Struct):
    shards: list[_Shard]
    version: Any = None


class MdsRecords(OffsetRecords):
    """The samples of a folder of MDS shards, in their order. Attributes are those of ``FieldRecords``.

    ``index.json`` lies in ``folder``, which may be a URL.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        root, text = opened(folder, "MDS shards")
        index = decoded(root, text, _MdsIndex)
        shards = index.shards
        if index.version != _VERSION:
            raise BadSetting(f"{root}/{INDEX} is of version {index.version!r} of MDS; {_VERSION} is read")
        for shard in shards:
            if shard.format != "mds" or shard.version != _VERSION:
                raise BadSetting(
                    f"{root}/{shard.raw_data.basename} is of the format {shard.format!r}, version "
                    f"{shard.version}; 'mds', version {_VERSION}, is read"
                )
            if shard.columns != shards[0].columns:
                raise BadSetting(
                    f"{root}/{shard.raw_data.basename} has other columns than {shards[0].raw_data.basename}"
                )
        columns = _columns(root, shards[0]) if shards else ()
        super().__init__(root, "MDS shards", list(map(_described, shards)), ColumnParser(columns))


def _described(shard: _Shard) -> Shard:
    raw, packed = shard.raw_data, shard.zip_data
    plain = Shard(raw.basename, shard.samples, (raw.bytes,), hashes=raw.hashes)
    if packed is None:
        return plain
    how = shard.compression or "?", packed.bytes, packed.hashes
    return Shard(packed.basename, shard.samples, (raw.bytes,), *how, left=plain)


def _columns(root: str, shard: _Shard) -> tuple[StoredColumn, ...]:
    names, encodings, sizes = shard.column_names, shard.column_encodings, shard.column_sizes
    if not len({*names}) == len(names) == len(encodings) == len(sizes):
        raise BadSetting(f"{root}/{INDEX} is damaged: it does not give each column one name, encoding and size")
    columns = zip(names, encodings, sizes, strict=True)
    return tuple(StoredColumn(name, *_encoding(encoding), nbytes or None) for name, encoding, nbytes in columns)


def _encoding(encoding: str) -> tuple[str, Reader]:
    """Return the type of a column, and what reads its values."""
    if encoding in _PLAIN:
        return _PLAIN[encoding]
    kind, _, given = encoding.partition(":")
    if kind == "ndarray":
        dtype, _, shape = given.partition(":")
        try:
            if not dtype:
                return "array", _any_array
            if dtype in _ARRAYS.values():
                axes = tuple(map(int, shape.split(","))) if shape else ()
                if min(axes, default=1) > 0:
                    return f"{dtype} array", Shaped(dtype, axes) if axes else _OfAnyShape(dtype)
        except ValueError:
            pass
    return f"{encoding}, not read", values.Unread(encoding)


def _any_array(data: bytes) -> Any:
    return _OfAnyShape(_ARRAYS[data[0]])(data[1:])


class _OfAnyShape(msgspec.Struct, frozen=True):
    """Reads arrays that begin with their shape: the number of axes, and in the lowest two bits its type."""

    dtype: str

    def __call__(self, data: bytes) -> Any:
        axes, power = data[0] >> 2, data[0] & 3
        end = 1 + (axes << power)
        if len(data) < end:
            raise ValueError("its shape is cut short")
        shape: list[int] = np.frombuffer(data[1:end], f"<u{1 << power}").tolist()
        return shaped(data[end:], self.dtype, shape)


def _decimal(data: bytes) -> str:
    """Return the digits of a decimal number, in which none is lost."""
    digits = data.decode()
    try:
        Decimal(digits)
    except InvalidOperation:
        raise ValueError(f"{digits[:20]!r} is no number") from None
    return digits


_ARRAYS = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
_PLAIN: Mapping[str, tuple[str, Reader]] = {
    **{dtype: (dtype, Scalar(dtype)) for dtype in _ARRAYS.values()},
    "int": ("int64", Scalar("int64")),
    "bytes": (values.BYTES, values.same),
    "str": (values.TEXT, values.text),
    "json": (values.JSON, values.plain),
    "jpeg": (values.JPEG, values.same),
    "png": (values.PNG, values.same),
    "pil": ("uint8 array", values.pixels),
    "str_int": ("int", int),
    "str_float": ("float", float),
    "str_decimal": ("decimal", _decimal),
}
