"""Parquet files as tables of row groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from penstock.contracts import Ids
from penstock.errors import BadSetting, ReadFailed, SourceError
from penstock.fingerprint.file_versions import FileVersion
from penstock.io.cache.cache import Cache
from penstock.sources.tables.table_files import (
    Fetch,
    OwnOfThreads,
    TableFiles,
    failed,
    opened,
    opened_for_datasets,
    pa,
)

parquet: Any = import_module("pyarrow.parquet")


class _RowGroup(NamedTuple):
    file: int
    number: int
    rows: int


class ParquetTables(TableFiles):
    """The row groups of Parquet files that have rows, file after file. Attributes are those of ``Tables``."""

    def __init__(self, paths: Sequence[str], cache: Cache | None = None) -> None:
        super().__init__(paths, cache)
        self._metadata, schemas = zip(*self._each(partial(_footer, self._fetch)), strict=True)
        first = self._metadata[0].schema
        leaves = _leaves(first)
        self._leaves = [leaves if each.schema.equals(first) else _leaves(each.schema) for each in self._metadata]
        """The paths of the leaves of each file's columns."""
        self._groups = [
            _RowGroup(i, number, each.row_group(number).num_rows)
            for i, each in enumerate(self._metadata)
            for number in range(each.num_row_groups)
            if each.row_group(number).num_rows
        ]
        self._hold("row groups", "Parquet files", schemas, [(group.file, group.rows) for group in self._groups])
        self._open = OwnOfThreads()

    def group_bytes(self, column: str) -> Ids:
        return np.array(
            [sum(each.total_uncompressed_size for each in its) for its in self._chunks(column)], np.int64
        )

    def ranges(self, column: str) -> list[tuple[Any, Any]] | None:
        """Return the least and the greatest value of each group; None if the files do not say."""
        found: list[tuple[Any, Any]] = []
        kinds = [
            [each.schema.column(i).physical_type for i, path in enumerate(leaves) if path == column]
            for each, leaves in zip(self._metadata, self._leaves, strict=True)
        ]
        for group, chunks in zip(self._groups, self._chunks(column), strict=True):
            # Of another type than the footer's own schema has, Arrow ends the process.
            is_so = [chunk.physical_type for chunk in chunks] == kinds[group.file]
            its = chunks[0].statistics if is_so else None
            if its is None or not its.has_min_max:
                return None
            try:
                found.append((its.min, its.max))
            except (ValueError, OverflowError):  # times that Python's own cannot hold
                return None
        return found

    def may_hold(self, expression: Any) -> list[bool]:
        dataset: Any = import_module("pyarrow.dataset")
        hit: set[tuple[int, int]] = set()
        for i, (path, version) in enumerate(zip(self._paths, self._versions, strict=True)):
            fragment = dataset.ParquetFileFormat().make_fragment(*opened_for_datasets(path, version, self._fetch))
            hit |= {
                (i, each.row_groups[0].id) for each in fragment.split_by_row_group(expression, schema=self.schema)
            }
        return [(group.file, group.number) in hit for group in self._groups]

    def read(self, group: int, columns: Sequence[str]) -> Any:
        file, number, rows = self._groups[group]
        path = self._paths[file]
        try:
            table = self._reader(file).read_row_group(number, columns=list(columns), use_threads=False)
            table.validate(full=True)
            self._check_times(group, table, columns)
        except (pa.ArrowException, OSError) as error:
            self._check([file])  # which explains it
            raise failed(self.where(group), path, error, self._damaged(group, columns)) from None
        self._check([file])
        if table.num_rows != rows:
            raise ReadFailed(
                f"{self.where(group)} has {table.num_rows:,} rows, and its footer says {rows:,}", path
            )
        return table

    def where(self, group: int) -> str:
        file, number, _ = self._groups[group]
        return f"{self._paths[file]}, row group {number:,}"

    def _damaged(self, group: int, columns: Sequence[str]) -> str:
        """Return the first of some columns of a group that cannot be read by itself; empty if there is none."""
        file, number, _ = self._groups[group]
        for column in columns:
            try:
                self._reader(file).read_row_group(number, columns=[column], use_threads=False).validate(full=True)
            except (pa.ArrowException, OSError):
                return column
        return ""

    def _check_times(self, group: int, table: Any, columns: Sequence[str]) -> None:
        """Refuse moments of INT96 that nanoseconds, as which they are read, do not hold: Arrow gives others."""
        file, number, _ = self._groups[group]
        paths = self._metadata[file].schema
        leaves = [each.path for each in map(paths.column, range(len(paths))) if each.physical_type == "INT96"]
        if tops := [name for name in table.schema.names if any(_of(path, name) for path in leaves)]:
            own = [column for column in columns if any(_of(column, top) for top in tops)]
            wide = self._reader(file, "ms").read_row_group(number, columns=own, use_threads=False)
            try:
                wide.cast(table.select(tops).schema)
            except pa.ArrowInvalid:
                raise SourceError(
                    f"{self.where(group)}: a moment of {' or '.join(map(repr, tops))} lies before 1677 or after "
                    "2262, and INT96 is read as nanoseconds, which do not hold it. Write it as timestamp[us], as "
                    "Spark's outputTimestampType=TIMESTAMP_MICROS does, or leave it out with columns="
                ) from None

    def _chunks(self, column: str) -> Iterator[list[Any]]:
        """Yield the parts of a column in each group."""
        own = {id(leaves): [i for i, path in enumerate(leaves) if _of(path, column)] for leaves in self._leaves}
        for group in self._groups:
            chunks = self._metadata[group.file].row_group(group.number)
            yield [chunks.column(i) for i in own[id(self._leaves[group.file])]]

    def _reader(self, file: int, int96: str | None = None) -> Any:
        """Return a reader of a file, which gives INT96 in a unit; one for each thread."""
        readers: dict[tuple[int, str | None], Any] = self._open.__dict__.setdefault("readers", {})
        if (file, int96) not in readers:
            if len(readers) >= _MOST_OPEN:
                readers.pop(next(iter(readers))).close(force=True)
            readers[file, int96] = parquet.ParquetFile(
                opened(self._paths[file], self._versions[file], self._fetch),
                metadata=self._metadata[file],
                pre_buffer=True,
                coerce_int96_timestamp_unit=int96,
                page_checksum_verification=True,
            )
        return readers[file, int96]


_MOST_OPEN = 16


def _footer(fetch: Fetch, path: str, version: FileVersion) -> tuple[Any, Any]:
    """Return what the end of a file says of it, and its schema."""
    try:
        found = parquet.ParquetFile(opened(path, version, fetch))
        footer, schema = found.metadata, found.schema_arrow
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"{path} is no Parquet file, or is damaged: {error}") from None
    rows = sum(footer.row_group(number).num_rows for number in range(footer.num_row_groups))
    if rows != footer.num_rows:
        raise BadSetting(
            f"{path} is damaged: its footer says {footer.num_rows:,} rows in all, and {rows:,} in its row groups"
        )
    return footer, schema


def _leaves(schema: Any) -> list[str]:
    return [schema.column(i).path for i in range(len(schema))]


def _of(path: str, column: str) -> bool:
    return path == column or path.startswith(f"{column}.")
