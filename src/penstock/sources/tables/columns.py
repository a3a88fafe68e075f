"""Columns of tables as arrays: which types there are, and what a row group's column becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import BadSetting, SourceError

pa: Any = import_module("pyarrow")
Values = npt.NDArray[Any]
Kind = Literal["fixed", "even", "list", "text", "bytes"]


class Column(NamedTuple):
    """A column that is read.

    Attributes:
        name: Its name; of a struct's field, ``struct.field``.
        kind: Whether all rows are equally large, lists of numbers that must be equally long, lists that need not,
            texts, or bytes.
        dtype: Type of the numbers; of texts and bytes, uint8.
        shape: Shape of a row; of one that varies, that of an item.
    """

    name: str
    kind: Kind
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    @property
    def varies(self) -> bool:
        """Whether rows are of different size."""
        return self.kind in ("list", "text", "bytes")

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in memory; of one that varies, those of its offset."""
        return 8 if self.varies else int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class Varying(NamedTuple):
    """Rows of different length: all values, and the length of each row."""

    values: Values
    lengths: npt.NDArray[np.int64]


def columns_of(schema: Any, names: Sequence[str] | None, where: str) -> list[Column]:
    """Return the columns of an Arrow schema; structs give a column for each of their fields.

    Args:
        schema: The ``pyarrow.Schema``.
        names: Those that are wanted; None for all.
        where: The data, for errors.

    Raises:
        BadSetting: there is no such column, or one has a type that no array has.
    """
    found = {name: kind for field in schema for name, kind in _flat(field.name, field.type)}
    if twice := [name for name in schema.names if schema.names.count(name) > 1]:
        raise BadSetting(f"{where} has {schema.names.count(twice[0])} columns named {twice[0]!r}")
    wanted = list(found) if names is None else [each for name in names for each in _below(name, found, where)]
    if not wanted:
        raise BadSetting(f"{where}: columns={names!r} names no column; it has {', '.join(found)}")
    return [_column(name, found[name], where) for name in dict.fromkeys(wanted)]


def bytes_columns(schema: Any) -> list[str]:
    """Return the columns of an Arrow schema that hold bytes, such as encoded images."""
    flat = [each for field in schema for each in _flat(field.name, field.type)]
    return [name for name, kind in flat if pa.types.is_binary(kind) or pa.types.is_large_binary(kind)]


def _flat(name: str, kind: Any) -> list[tuple[str, Any]]:
    if not pa.types.is_struct(kind):
        return [(name, kind)]
    return [each for field in kind for each in _flat(f"{name}.{field.name}", field.type)]


def _below(name: str, found: Mapping[str, Any], where: str) -> list[str]:
    """Return the column of a name, or those of the struct's fields."""
    below = [each for each in found if each == name or each.startswith(f"{name}.")]
    if not below:
        raise BadSetting(f"{where} has no column {name!r}; it has {', '.join(found)}")
    return below


def _column(name: str, kind: Any, where: str) -> Column:
    is_ = pa.types
    while isinstance(kind, pa.BaseExtensionType) or is_.is_dictionary(kind):
        kind = kind.value_type if is_.is_dictionary(kind) else kind.storage_type
    if is_.is_string(kind) or is_.is_large_string(kind):
        return Column(name, "text", np.dtype(np.uint8))
    if is_.is_binary(kind) or is_.is_large_binary(kind):
        return Column(name, "bytes", np.dtype(np.uint8))
    if is_.is_fixed_size_binary(kind) and not is_.is_decimal(kind):
        return Column(name, "fixed", np.dtype(np.uint8), (kind.byte_width,))
    shape: tuple[int, ...] = ()
    inner = kind
    while is_.is_fixed_size_list(inner):
        shape, inner = (*shape, inner.list_size), inner.value_type
    if (dtype := _number(inner)) is not None:
        return Column(name, "fixed", dtype, shape)
    if not shape and (is_.is_list(kind) or is_.is_large_list(kind)):
        inner = kind.value_type
        while is_.is_fixed_size_list(inner):
            shape, inner = (*shape, inner.list_size), inner.value_type
        if (dtype := _number(inner)) is not None:
            return Column(name, "list", dtype, shape)
    remedy = "cast it to float64 where it is written, or " if is_.is_decimal(inner) else ""
    raise BadSetting(
        f"{where}: column {name!r} is of type {kind}, which no array of numbers has: {remedy}leave it out with "
        "columns="
    )


def _number(kind: Any) -> np.dtype[Any] | None:
    is_ = pa.types
    plain = is_.is_integer(kind) or is_.is_floating(kind) or is_.is_boolean(kind)
    if plain or is_.is_date32(kind) or is_.is_date64(kind) or is_.is_timestamp(kind) or is_.is_duration(kind):
        return np.dtype(kind.to_pandas_dtype()) if plain else _time(kind)
    return None


def _time(kind: Any) -> np.dtype[Any]:
    """Return NumPy's type of a date, a moment (that of UTC if it has a zone) or a duration."""
    if pa.types.is_date(kind):
        return np.dtype("M8[D]" if pa.types.is_date32(kind) else "M8[ms]")
    return np.dtype(f"{'m' if pa.types.is_duration(kind) else 'M'}8[{kind.unit}]")


def values_of(array: Any, column: Column, fill: Any, where: str) -> Values | Varying:
    """Return the rows of a column's chunk.

    Args:
        array: The ``pyarrow.Array``.
        column: What it is.
        fill: What stands in place of nulls; None if there may be none.
        where: The row group, for errors.

    Raises:
        SourceError: there are nulls, and nothing to fill them with.
    """
    while isinstance(array, (pa.ExtensionArray, pa.DictionaryArray)):
        array = array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array.storage
    if column.kind in ("text", "bytes"):
        array = _filled(array, column, fill, where)
        return Varying(*_bytes_of(array))
    if column.kind not in ("list", "even"):
        return _numbers(array, column, fill, where)
    if array.null_count:
        raise _null(array, column, where, "lists cannot be filled: ")
    lengths = np.diff(np.asarray(array.offsets.to_numpy(zero_copy_only=False), np.int64))
    if column.kind == "list":
        return Varying(_numbers(array.flatten(), column, fill, where), lengths)
    if (odd := np.flatnonzero(lengths != column.shape[0])).size:
        raise SourceError(
            f"{where}: column {column.name!r} has {lengths[odd[0]]:,} numbers in row {odd[0]:,}, and "
            f"{column.shape[0]:,} in the first row of all: for lists of different length pass ragged='pad' or "
            "'pack'"
        )
    return _numbers(array.flatten(), column, fill, where)


def _numbers(array: Any, column: Column, fill: Any, where: str) -> Values:
    rows = len(array)
    while pa.types.is_fixed_size_list(array.type):
        if array.null_count:
            raise _null(array, column, where, "lists cannot be filled: ")
        array = array.flatten()
    if pa.types.is_fixed_size_binary(array.type):
        array = _filled(array, column, fill, where)
        raw = np.frombuffer(array.buffers()[1], np.uint8) if rows else np.empty(0, np.uint8)
        width = column.shape[0]
        return raw[array.offset * width : (array.offset + rows) * width].reshape(rows, width)
    array = _filled(array, column, fill, where)
    numbers = array.to_numpy(zero_copy_only=False).astype(column.dtype, copy=False)
    return numbers.reshape(-1, *column.shape)


def _filled(array: Any, column: Column, fill: Any, where: str) -> Any:
    if not array.null_count:
        return array
    if fill is None:
        raise _null(array, column, where)
    try:
        return array.fill_null(fill)
    except (pa.ArrowException, TypeError) as error:
        raise BadSetting(
            f"fill={fill!r} does not fit column {column.name!r} of type {array.type}: {error}"
        ) from None


def _null(array: Any, column: Column, where: str, why: str = "") -> SourceError:
    first = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
    return SourceError(
        f"{where}: column {column.name!r} has {array.null_count:,} nulls, the first in row {first:,}: {why}pass "
        f"fill={{{column.name!r}: ...}} for what is to stand there, or a filter that leaves these rows out"
    )


def _bytes_of(array: Any) -> tuple[Values, npt.NDArray[np.int64]]:
    """Return the bytes of texts or of binary values, and the length of each."""
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    if not len(array):
        return np.empty(0, np.uint8), np.empty(0, np.int64)
    _, offsets, data = array.buffers()
    every = np.frombuffer(offsets, np.int64 if wide else np.int32)
    own = every[array.offset : array.offset + len(array) + 1].astype(np.int64)
    values = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return values[own[0] : own[-1]], np.diff(own)
