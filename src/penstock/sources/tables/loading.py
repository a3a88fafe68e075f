"""Row groups brought into memory, handful by handful: the next one is read while one is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from penstock.contracts import Ids, Tables
from penstock.errors import ReadFailed
from penstock.sources.tables.columns import Column, Values, Varying, values_of
from penstock.sources.tables.files import fields_of, pa
from penstock.sources.tables.handfuls import Handful
from penstock.tree import RaggedRows

Rows = Values | RaggedRows
"""The rows of a column: an array, or one of rows of different length (texts as their bytes)."""


class Output(NamedTuple):
    """A leaf of the batches.

    Attributes:
        name: Its name.
        columns: The column that it is, or several numbers that become one row each.
        stacked: Whether they do.
    """

    name: str
    columns: Sequence[Column]
    stacked: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.result_type(*(column.dtype for column in self.columns))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a row; of one that varies, that of an item."""
        return (len(self.columns),) if self.stacked else self.columns[0].shape

    @property
    def varies(self) -> bool:
        return self.columns[0].varies


class Reading(NamedTuple):
    """What is read of tables.

    Attributes:
        tables: The tables.
        outputs: What becomes of their columns.
        fill: By column, what stands in place of nulls.
        condition: Which rows, as a ``pyarrow.compute.Expression``; None for all.
        needed: Columns of the schema that the condition needs.
    """

    tables: Tables
    outputs: Sequence[Output]
    fill: Mapping[str, Any]
    condition: Any = None
    needed: Sequence[str] = ()

    @property
    def columns(self) -> list[Column]:
        return [column for output in self.outputs for column in output.columns]

    def count(self, group: int) -> int:
        """Return how many rows of a group are wanted."""
        if self.condition is None:
            return int(self.tables.group_rows[group])
        return self.tables.read(group, self.needed).filter(self.condition).num_rows

    def read(self, group: int) -> list[Values | Varying]:
        """Return the columns of a group.

        Raises:
            ReadFailed: it cannot be read.
            SourceError: a column has nulls that nothing fills, or lists of different length.
        """
        names = [column.name for column in self.columns]
        table = self.tables.read(group, list(dict.fromkeys([*names, *self.needed])))
        if self.condition is not None:
            table = table.filter(self.condition)
        where = self.tables.where(group)
        arrays = zip(fields_of(table, names), self.columns, strict=True)
        return [values_of(array, column, self.fill.get(column.name), where) for array, column in arrays]


class Loaded:
    """The rows of a handful.

    Args:
        groups: Its groups, rising.
        rows: Rows of each of them.
        firsts: The id of the first row of each.
        outputs: What becomes of the columns.

    Attributes:
        rows: The rows of each output, once all groups are there.
    """

    def __init__(self, groups: Sequence[int], rows: Ids, firsts: Ids, outputs: Sequence[Output]) -> None:
        self._firsts = firsts
        self._at = np.cumsum(rows) - rows
        places = zip(groups, self._at.tolist(), rows.tolist(), strict=True)
        self._place = {group: (i, slice(at, at + n)) for i, (group, at, n) in enumerate(places)}
        self._outputs = outputs
        total = int(rows.sum())
        self._fixed = [None if each.varies else np.empty((total, *each.shape), each.dtype) for each in outputs]
        self._varying: list[list[Varying | None]] = [[None] * len(groups) for _ in outputs]
        self.rows: list[Rows] = []

    def put(self, group: int, columns: Sequence[Values | Varying]) -> None:
        """Take in the columns of a group."""
        number, place = self._place[group]
        every = iter(columns)
        for output, fixed, varying in zip(self._outputs, self._fixed, self._varying, strict=True):
            for i, _ in enumerate(output.columns):
                values = next(every)
                if isinstance(values, Varying):
                    varying[number] = values
                elif fixed is not None and output.stacked:
                    fixed[place, i] = values
                elif fixed is not None:
                    fixed[place] = values

    def finish(self) -> None:
        """Put together what varies, once all groups are there."""
        for fixed, varying in zip(self._fixed, self._varying, strict=True):
            self.rows.append(fixed if fixed is not None else _together(varying))

    def positions(self, ids: Ids) -> Ids:
        """Return where rows of these ids lie."""
        i = np.searchsorted(self._firsts, ids, "right") - 1
        return ids + (self._at - self._firsts)[i]


def _together(parts: list[Varying | None]) -> RaggedRows:
    """Join rows, each part of which is given up once it was copied."""
    every = [part for part in parts if part is not None]
    lengths = np.concatenate([part.lengths for part in every])
    first = every[0].values
    values = np.empty((int(lengths.sum()), *first.shape[1:]), first.dtype)
    del every, first
    at = 0
    for i, part in enumerate(parts):
        assert part is not None
        values[at : at + len(part.values)] = part.values
        at, parts[i] = at + len(part.values), None
    return RaggedRows(values, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]))


class GroupLoader:
    """Reads handfuls in threads.

    Args:
        reading: What is read.
        groups: Groups of the tables that have wanted rows.
        rows: How many rows each has that are wanted.
        threads: How many groups are read at once.
    """

    def __init__(self, reading: Reading, groups: Ids, rows: Ids, threads: int) -> None:
        self._reading, self._groups, self._rows, self._threads = reading, groups, rows, threads
        self._firsts = np.cumsum(rows) - rows
        self._pool: ThreadPoolExecutor | None = None
        self._begun: dict[tuple[int, ...], tuple[Loaded, list[Future[None]]]] = {}

    def begin(self, handful: Handful) -> None:
        """Begin to read a handful, unless it was begun."""
        if handful.groups in self._begun:
            return
        self._pool = self._pool or ThreadPoolExecutor(self._threads, "penstock-tables")
        groups = sorted(handful.groups)
        loaded = Loaded(groups, self._rows[groups], self._firsts[groups], self._reading.outputs)
        futures = [self._pool.submit(self._load, loaded, group) for group in groups]
        self._begun[handful.groups] = loaded, futures

    def get(self, handful: Handful) -> Loaded:
        """Return a handful, once all of it was read; those that were begun before it are given up.

        Raises:
            ReadFailed: a group cannot be read.
            SourceError: a value is none that can be given.
        """
        self.begin(handful)
        for earlier in list(self._begun):
            if earlier == handful.groups:
                break
            self._forget(earlier)
        loaded, futures = self._begun[handful.groups]
        if futures:
            try:
                for future in futures:
                    future.result()
            except BaseException:
                self._forget(handful.groups)
                raise
            futures.clear()
            loaded.finish()
            pa.default_memory_pool().release_unused()
        return loaded

    def close(self) -> None:
        """Give up what was read, and end the threads."""
        for groups in list(self._begun):
            self._forget(groups)
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _forget(self, groups: tuple[int, ...]) -> None:
        _, futures = self._begun.pop(groups)
        for future in futures:
            future.cancel()

    def _load(self, loaded: Loaded, group: int) -> None:
        number = int(self._groups[group])
        columns = self._reading.read(number)
        for values in columns:
            rows = len(values.lengths if isinstance(values, Varying) else values)
            if rows != self._rows[group]:
                where = self._reading.tables.where(number)
                raise ReadFailed(f"{where} has {rows:,} rows now, and had {self._rows[group]:,}", where)
        loaded.put(group, columns)
