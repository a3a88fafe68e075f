"""Row groups brought into memory, shuffle window by shuffle window: the next one is read while one is given."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import numpy as np

from penstock.contracts import ByteArray, Ids, Tables
from penstock.errors import ReadFailed, SourceError, Untravelled
from penstock.sources.sharding import UNTRAVELLED
from penstock.sources.tables.columns import TableColumn, Values, VaryingRows, values_of
from penstock.sources.tables.shuffle_windows import ShuffleWindow
from penstock.sources.tables.table_files import field_of, pa
from penstock.tree import RaggedRows

Allocate = Callable[[int], Values]
"""Returns an array of so many bytes."""
_BITS = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}
"""Types as which numbers are copied, by their size."""
_EXACT = 2**53
"""Up to here float64 holds each whole number."""


def own_memory(nbytes: int) -> Values:
    """Return an array in this process's own memory."""
    return np.empty(nbytes, np.uint8)


class TableLeaf(NamedTuple):
    """A leaf of the batches."""

    name: str
    columns: Sequence[TableColumn]  # the column that it is, or several numbers that become one row each
    stacked: bool  # whether they do
    dtype: np.dtype[Any]  # type of its numbers
    shape: tuple[int, ...]  # shape of a row; of one that varies, that of an item

    @classmethod
    def of(cls, name: str, columns: Sequence[TableColumn], *, stacked: bool = False) -> TableLeaf:
        shape = (len(columns),) if stacked else columns[0].shape
        return cls(name, columns, stacked, np.result_type(*(column.dtype for column in columns)), shape)

    @property
    def varies(self) -> bool:
        return self.columns[0].varies

    def check(self, columns: Sequence[Values | VaryingRows], where: str) -> None:
        """Check that whole numbers and times stay the same in the type that they share with others.

        ``columns`` are the rows of each column; ``where`` is the row group, for errors.
        """
        for column, values in zip(self.columns, columns, strict=True):
            if isinstance(values, VaryingRows) or self.dtype == column.dtype:
                continue
            if column.dtype.kind in "mM":
                there_and_back = values.astype(self.dtype).astype(column.dtype)
                if (odd := np.flatnonzero(there_and_back.view("i8") != values.view("i8"))).size:
                    raise SourceError(
                        f"{where}: column {column.name!r} has {values[odd[0]]}, which {self.dtype}, the type of "
                        f"columns[{self.name!r}], does not hold: leave it out of that array"
                    )
            if self.dtype != "f8" or column.dtype.kind not in "iu":
                continue
            least, most = int(values.min(initial=0)), int(values.max(initial=0))
            if max(-least, most) > _EXACT:
                raise SourceError(
                    f"{where}: column {column.name!r} has {most if most > _EXACT else least}, which float64, the "
                    f"type of columns[{self.name!r}], may not hold exactly: leave it out of that array"
                )


class Loaded:
    """The rows of a shuffle window.

    Columns of one number a row lie side by side, those of one size together: a row that is picked is then read in
    one piece, not one number here and one there.
    """

    def __init__(
        self,
        groups: Sequence[int],  # its groups, rising
        rows: Ids,  # rows of each of them
        outputs: Sequence[TableLeaf],
        allocate: Allocate,
    ) -> None:
        self._allocate = allocate  # returns memory for rows that vary, a number of bytes
        places = zip(groups, (np.cumsum(rows) - rows).tolist(), rows.tolist(), strict=True)
        self._place = {group: (i, slice(at, at + n)) for i, (group, at, n) in enumerate(places)}
        self._outputs = outputs  # what becomes of the columns
        total = int(rows.sum())
        self._beside: dict[int, list[int]] = {}
        self._arrays = dict[int, Values]()
        self._parts: dict[int, list[VaryingRows | None]] = {}
        self.varying: dict[int, RaggedRows] = {}
        for i, output in enumerate(outputs):
            if output.varies:
                self._parts[i] = [None] * len(groups)
            elif output.shape or output.dtype.itemsize not in _BITS:
                self._arrays[i] = np.empty((total, *output.shape), output.dtype)
            else:
                self._beside.setdefault(output.dtype.itemsize, []).append(i)
        self._matrices = {
            nbytes: np.empty((total, len(own)), _BITS[nbytes]) for nbytes, own in self._beside.items()
        }

    def put(self, group: int, columns: Sequence[Values | VaryingRows]) -> None:
        """Take in the columns of a group."""
        number, place = self._place[group]
        every = iter(columns)
        own = [[next(every) for _ in output.columns] for output in self._outputs]
        for i, (first, *others) in enumerate(own):
            if isinstance(first, VaryingRows):
                self._parts[i][number] = first
            elif i in self._arrays:
                to = self._arrays[i][place]
                to[...] = np.array([first, *others]).T if self._outputs[i].stacked else first
        for nbytes, beside in self._beside.items():
            whole = [np.asarray(own[i][0], self._outputs[i].dtype).view(_BITS[nbytes]) for i in beside]
            self._matrices[nbytes][place] = np.array(whole).T

    def finish(self) -> None:
        """Put together what varies, once all groups are there."""
        for i, parts in self._parts.items():
            self.varying[i] = _together(parts, self._allocate)
        self._parts.clear()

    def pick(self, at: Ids, memory: ByteArray, offsets: Sequence[int]) -> None:
        """Write rows to a block's memory: each output that does not vary, at its offset."""
        rows = len(at)
        for i, array in self._arrays.items():
            nbytes = rows * array[:1].nbytes
            to = memory[offsets[i] : offsets[i] + nbytes].view(array.dtype).reshape(rows, *array.shape[1:])
            np.take(array, at, 0, to, "clip")
        for nbytes, beside in self._beside.items():
            picked = np.take(self._matrices[nbytes], at, 0, mode="clip")
            for k, first, count in _runs([offsets[i] for i in beside], rows * nbytes):
                to = memory[first : first + count * rows * nbytes].view(_BITS[nbytes])
                to.reshape(count, rows)[...] = picked[:, k : k + count].T


def _runs(offsets: Sequence[int], nbytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield parts of some bytes each that follow one another: number and offset of the first, and how many."""
    k = 0
    while k < len(offsets):
        count = 1
        while k + count < len(offsets) and offsets[k + count] == offsets[k] + count * nbytes:
            count += 1
        yield k, offsets[k], count
        k += count


def _together(parts: list[VaryingRows | None], allocate: Allocate) -> RaggedRows:
    """Join rows, each part of which is given up once it was copied."""
    every = [part for part in parts if part is not None]
    lengths = np.concatenate([part.lengths for part in every])
    first = every[0].values
    shape, kind = (int(lengths.sum()), *first.shape[1:]), first.dtype
    values = allocate(math.prod(shape) * kind.itemsize).view(kind).reshape(shape)
    del every, first
    at = 0
    for i, part in enumerate(parts):
        assert part is not None
        values[at : at + len(part.values)] = part.values
        at, parts[i] = at + len(part.values), None
    return RaggedRows(values, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]))


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
        found = list[Values | VaryingRows]()
        for column in self.columns:
            try:
                array = field_of(table, column.path)
                found.append(values_of(array, column, self.fill.get(column.name), where))
            except pa.ArrowException as error:  # such as lists of more than 2**31 numbers
                raise SourceError(
                    f"{where}: column {column.name!r} cannot be taken: {error}. Write smaller row groups"
                ) from None
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
