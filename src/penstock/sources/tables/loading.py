"""Row groups brought into memory, shuffle window by shuffle window: the next one is read while one is given."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

from penstock.contracts import Ids, Tables
from penstock.errors import ReadFailed, SourceError, Untravelled
from penstock.sources.sharding import UNTRAVELLED
from penstock.sources.tables.columns import TableColumn, Values, VaryingRows, values_of
from penstock.sources.tables.files import fields_of, pa
from penstock.sources.tables.loaded import Allocate, Loaded, TableLeaf, own_memory
from penstock.sources.tables.shuffle_windows import ShuffleWindow


class TableReading(NamedTuple):
    """What is read of tables."""

    tables: Tables
    outputs: Sequence[TableLeaf]  # what becomes of their columns
    fill: Mapping[str, Any]  # by column, what stands in place of nulls
    condition: Any = None  # which rows, as a ``pyarrow.compute.Expression``; None for all
    needed: Sequence[str] = ()  # columns of the schema that the condition needs

    @property
    def columns(self) -> list[TableColumn]:
        return [column for output in self.outputs for column in output.columns]

    def count(self, group: int) -> int:
        """Return of how many rows of a group the condition is true."""
        return self.tables.read(group, self.needed).filter(self.condition).num_rows

    def read(self, group: int) -> list[Values | VaryingRows]:
        """Return the columns of a group."""
        names = [column.name for column in self.columns]
        table = self.tables.read(group, list(dict.fromkeys([*names, *self.needed])))
        where = self.tables.where(group)
        if self.condition is not None:
            table = table.filter(self.condition)
            where += ", rows that the filter leaves"
        arrays = zip(fields_of(table, [column.path for column in self.columns]), self.columns, strict=True)
        try:
            found = [values_of(array, column, self.fill.get(column.name), where) for array, column in arrays]
        except pa.ArrowException as error:  # such as lists of more than 2**31 numbers
            raise SourceError(f"{where} cannot be taken: {error}. Write smaller row groups") from None
        every = iter(found)
        for output in self.outputs:
            output.check([next(every) for _ in output.columns], where)
        return found


class GroupLoader:
    """Reads shuffle windows in threads."""

    def __init__(
        self,
        reading: TableReading,  # what is read
        groups: Ids,  # groups of the tables that have wanted rows
        rows: Ids,  # how many rows each has that are wanted
        threads: int,  # how many groups are read at once
        allocate: Allocate = own_memory,
    ) -> None:
        self._reading, self._groups, self._rows, self._threads = reading, groups, rows, threads
        self._allocate = allocate  # returns memory for rows that vary, a number of bytes
        self._pid = os.getpid()
        self._pool: ThreadPoolExecutor | None = None
        self._begun: dict[tuple[int, ...], tuple[Loaded, list[Future[None]]]] = {}
        self._entered: tuple[ShuffleWindow, Loaded] | None = None

    def __getstate__(self) -> object:
        if self._pool is not None:
            raise Untravelled(UNTRAVELLED.format(self._reading.tables.root))
        return object.__getstate__(self)

    def enter(self, shuffle_window: ShuffleWindow, following: ShuffleWindow) -> Loaded:
        """Return a shuffle window for one block after another, and read the one that follows meanwhile.

        Errors are those of ``get``.
        """
        if self._entered is None or self._entered[0] is not shuffle_window:
            self._entered = None
            self._entered = shuffle_window, self.get(shuffle_window)
            self.begin(following)
        return self._entered[1]

    def begin(self, shuffle_window: ShuffleWindow) -> None:
        """Begin to read a shuffle window, unless it was begun."""
        self._forget_parents()
        if shuffle_window.groups in self._begun:
            return
        self._pool = self._pool or ThreadPoolExecutor(self._threads, "penstock-tables")
        groups = sorted(shuffle_window.groups)
        loaded = Loaded(groups, self._rows[groups], self._reading.outputs, self._allocate)
        futures = [self._pool.submit(self._load, loaded, group) for group in groups]
        self._begun[shuffle_window.groups] = loaded, futures

    def get(self, shuffle_window: ShuffleWindow) -> Loaded:
        """Return a shuffle window, once all of it was read; those that were begun before it are given up first."""
        self._forget_parents()
        for earlier in list(self._begun):
            if earlier == shuffle_window.groups:
                break
            self._forget(earlier)
        self.begin(shuffle_window)
        loaded, futures = self._begun[shuffle_window.groups]
        if futures:
            try:
                for future in futures:
                    future.result()
                loaded.finish()
            except BaseException:
                self._forget(shuffle_window.groups)
                raise
            futures.clear()
            pa.default_memory_pool().release_unused()
        return loaded

    def close(self) -> None:
        """Give up what was read, and end the threads."""
        self._entered = None
        self._forget_parents()
        for groups in list(self._begun):
            self._forget(groups)
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _forget_parents(self) -> None:
        """Forget, in a forked child's copy, what its parent's threads read: they are not here."""
        if self._pid != os.getpid():
            self._pid, self._pool, self._begun = os.getpid(), None, {}

    def _forget(self, groups: tuple[int, ...]) -> None:
        """Give up a shuffle window, and the memory that its threads hold."""
        _, futures = self._begun.pop(groups)
        wait([future for future in futures if not future.cancel()])

    def _load(self, loaded: Loaded, group: int) -> None:
        number = int(self._groups[group])
        columns = self._reading.read(number)
        for values in columns:
            rows = len(values.lengths if isinstance(values, VaryingRows) else values)
            if rows != self._rows[group]:
                where = self._reading.tables.where(number)
                raise ReadFailed(f"{where} has {rows:,} rows now, and had {self._rows[group]:,}", where)
        loaded.put(group, columns)
