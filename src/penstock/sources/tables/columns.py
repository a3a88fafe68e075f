"""Columns of tables as arrays: which types there are, and what a row group's column becomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.contracts import Ids
from penstock.errors import BadSetting, SourceError

pa: Any = import_module("pyarrow")
Values = npt.NDArray[Any]
Kind = Literal["fixed", "even", "list", "text", "bytes"]


class TableColumn(NamedTuple):
    """A column that is read."""

    name: str  # its name; of a struct's field, ``struct.field``
    kind: Kind
    """Whether all rows are equally large, lists of numbers that must be equally long, lists that need not, texts,
    or bytes."""
    dtype: np.dtype[Any]  # type of the numbers; of texts and bytes, uint8
    path: tuple[str, ...]
    """The names that lead to it: of a column, and of fields in structs, which may have dots in them."""
    shape: tuple[int, ...] = ()  # shape of a row; of one that varies, that of an item

    @property
    def varies(self) -> bool:
        """Whether rows are of different size."""
        return self.kind in ("list", "text", "bytes")

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in memory; of one that varies, those of its offset."""
        return 8 if self.varies else int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class VaryingRows(NamedTuple):
    """Rows of different length: all values, and the length of each row."""

    values: Values
    lengths: npt.NDArray[np.int64]


def columns_of(schema: Any, names: Sequence[str] | None, where: str) -> list[TableColumn]:
    """Return an Arrow schema's columns of these names, None for all; structs give one for each field.

    ``where`` is the data, for errors.
    """
    flat = flat_fields((), schema)
    found = {".".join(path): (path, kind) for path, kind in flat}
    tops: list[str] = schema.names
    wanted = list(found) if names is None else [each for name in names for each in _below(name, found, where)]
    counts = Counter(tops) | Counter(".".join(path) for path, _ in flat)
    for name in [part for each in wanted for part in (each, found[each][0][0])]:
        if counts[name] > 1:
            raise BadSetting(
                f"{where} has {counts[name]} columns named {name!r}: give them other names, or leave them out "
                "with columns=, a list of the others"
            )
    if not wanted:
        raise BadSetting(f"{where}: columns={names!r} names no column; it has {', '.join(found)}")
    return [_column(name, *found[name], where) for name in dict.fromkeys(wanted)]


def bytes_columns(schema: Any) -> list[str]:
    """Return the columns of an Arrow schema that hold bytes, such as encoded images."""
    return [
        ".".join(path)
        for path, kind in flat_fields((), schema)
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    ]


def flat_fields(path: tuple[str, ...], kind: Any) -> list[tuple[tuple[str, ...], Any]]:
    """Return the path and the type of each field in a struct, however deep, or of a column that is none."""
    if path and not pa.types.is_struct(kind):
        return [(path, kind)]
    return [each for field in kind for each in flat_fields((*path, field.name), field.type)]


def _below(name: str, found: Mapping[str, tuple[tuple[str, ...], Any]], where: str) -> list[str]:
    """Return the column of a name, or those of the struct's fields."""
    if name in found:
        return [name]
    below = [each for each, (path, _) in found.items() if name in accumulate(path, "{}.{}".format)]
    if not below:
        raise BadSetting(f"{where} has no column {name!r}; it has {', '.join(found)}")
    return below


def _column(name: str, path: tuple[str, ...], kind: Any, where: str) -> TableColumn:
    is_ = pa.types
    while isinstance(kind, pa.BaseExtensionType) or is_.is_dictionary(kind):
        kind = kind.value_type if is_.is_dictionary(kind) else kind.storage_type
    if is_.is_string(kind) or is_.is_large_string(kind):
        return TableColumn(name, "text", np.dtype(np.uint8), path)
    if is_.is_binary(kind) or is_.is_large_binary(kind):
        return TableColumn(name, "bytes", np.dtype(np.uint8), path)
    if is_.is_fixed_size_binary(kind) and not is_.is_decimal(kind):
        return TableColumn(name, "fixed", np.dtype(np.uint8), path, (kind.byte_width,))
    varies = is_.is_list(kind) or is_.is_large_list(kind)
    inner, shape = kind.value_type if varies else kind, ()
    while is_.is_fixed_size_list(inner):
        inner, shape = inner.value_type, (*shape, inner.list_size)
    if (dtype := _number(inner)) is not None:
        return TableColumn(name, "list" if varies else "fixed", dtype, path, shape)
    remedy = "cast it to float64 where it is written, or " if is_.is_decimal(inner) else ""
    if varies and (is_.is_string(inner) or is_.is_large_string(inner)):
        remedy = "join the texts of each row to one where they are written (decode= may split it), or "
    raise BadSetting(
        f"{where}: column {name!r} is of type {kind}, which no array of numbers has: {remedy}leave it out with "
        "columns=, a list of the others"
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


class NoNulls(NamedTuple):
    """Stands in place of a fill where nulls are an error, with a remedy of its own."""

    remedy: str


def values_of(array: Any, column: TableColumn, fill: Any, where: str) -> Values | VaryingRows:
    """Return the rows of a column's chunk, a ``pyarrow.Array``.

    ``fill`` stands in place of nulls, None if there may be none; ``where`` is the row group, for errors.
    """
    while isinstance(array, (pa.ExtensionArray, pa.DictionaryArray)):
        array = array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array.storage
    rows = np.ones(len(array), np.int64)
    if column.kind in ("text", "bytes"):
        return VaryingRows(*_bytes_of(_filled(array, column, fill, where, rows)))
    if column.kind not in ("list", "even"):
        return _numbers(array, column, fill, where, rows)
    if array.null_count:
        raise _null_list(array, column, where, rows)
    lengths = np.diff(np.asarray(array.offsets.to_numpy(zero_copy_only=False), np.int64))
    if column.kind == "list":
        return VaryingRows(_numbers(array.flatten(), column, fill, where, lengths), lengths)
    if (odd := np.flatnonzero(lengths != column.shape[0])).size:
        raise SourceError(
            f"{where}: column {column.name!r} has {lengths[odd[0]]:,} numbers in row {odd[0]:,}, and "
            f"{column.shape[0]:,} in the first row of all: for lists of different length pass ragged='pad' or "
            "'pack'"
        )
    items = column._replace(shape=column.shape[1:])
    return _numbers(array.flatten(), items, fill, where, lengths).reshape(len(rows), *column.shape)


def _numbers(array: Any, column: TableColumn, fill: Any, where: str, lengths: Ids) -> Values:
    """Return numbers of items, of which the rows have so many each."""
    items = len(array)
    while pa.types.is_fixed_size_list(array.type):
        if array.null_count:
            raise _null_list(array, column, where, lengths)
        array = array.flatten()
    array = _filled(array, column, fill, where, lengths)
    if pa.types.is_fixed_size_binary(array.type):
        raw = np.frombuffer(array.buffers()[1], np.uint8) if items else np.empty(0, np.uint8)
        width = column.shape[0]
        return raw[array.offset * width : (array.offset + items) * width].reshape(items, width)
    numbers = array.to_numpy(zero_copy_only=False).astype(column.dtype, copy=False)
    return numbers.reshape(items, *column.shape)


def _filled(array: Any, column: TableColumn, fill: Any, where: str, lengths: Ids) -> Any:
    if not array.null_count:
        return array
    if fill is None or isinstance(fill, NoNulls):
        usual = f"pass fill={{{column.name!r}: ...}} for what is to stand there, or a filter that leaves these out"
        raise SourceError(
            f"{where}: column {column.name!r} has {array.null_count:,} nulls, the first in row "
            f"{_first_null(array, lengths):,}: {fill.remedy if fill else usual}"
        )
    try:
        if pa.types.is_integer(array.type) and fill != int(fill):  # Arrow cuts it
            raise TypeError("it is no whole number")
        return array.fill_null(fill)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise BadSetting(
            f"fill={fill!r} does not fit column {column.name!r} of type {array.type}: {error}"
        ) from None


def _null_list(array: Any, column: TableColumn, where: str, lengths: Ids) -> SourceError:
    return SourceError(
        f"{where}: column {column.name!r} has {array.null_count:,} nulls in place of lists, which cannot be "
        f"filled, the first in row {_first_null(array, lengths):,}: leave these rows out with filter="
        f'"{column.name} != None", or the column with columns='
    )


def _first_null(array: Any, lengths: Ids) -> int:
    """Return the row of the first null among values, of which all items of the rows have equally many."""
    first = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
    item = first * int(lengths.sum()) // len(array)
    return int(np.searchsorted(np.cumsum(lengths), item, "right"))


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
