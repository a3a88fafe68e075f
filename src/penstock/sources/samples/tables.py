"""Rows of tables as the data of a source, a shuffle window at a time: their order, and blocks of whole columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from penstock.basics.sizes import size_text
from penstock.basics.terminal import printable, say
from penstock.contracts import Cursor, Ids, Joints, SourceBlock, Wanted
from penstock.errors import BadSetting
from penstock.memory.room import aligned
from penstock.memory.slots import Filled, Slots, place
from penstock.sources.order import Order, Planned, planned
from penstock.sources.samples.blocks import SampleData
from penstock.sources.samples.sample_source import OrderSettings
from penstock.sources.samples.worker import Samples
from penstock.sources.tables.loading import Allocate, GroupLoader, Loaded, TableLeaf, own_memory
from penstock.sources.tables.opening import OpenedTables
from penstock.sources.tables.shuffle_windows import ShuffleWindow, ShuffleWindows
from penstock.tree import Node, RaggedRows, describe

_SLOTS = 2
"""A block is written while the one before is announced."""
_FEW = 0.5
"""A block that has rows of fewer of the row groups has too few, where these are sorted."""


def order_of(opened: OpenedTables, settings: OrderSettings) -> Order | ShuffleWindows:
    """Return the order of tables' rows: of shuffle windows where they do not fit in memory."""
    total = int(opened.nbytes.sum())
    shuffle_bytes, batch_size, segments, seed, shuffle = settings
    if total <= shuffle_bytes:
        return settings.order(int(opened.rows.sum()))
    if (segments or 1) > 1:
        raise BadSetting(
            f"segments={segments}: tables of {size_text(total)} in memory, more than shuffle_bytes="
            f"{size_text(shuffle_bytes)}, have none: row groups are drawn afresh in each cycle"
        )
    half = shuffle_bytes // 2  # one shuffle window is given while the next one is read
    if (largest := int(opened.nbytes.max())) > half:
        say(
            f"{printable(opened.reading.tables.root)}: row groups of up to {size_text(largest)} in memory do not "
            f"fit half of shuffle_bytes={size_text(shuffle_bytes)}, and two of them are there at a time: raise "
            "shuffle_bytes, or write smaller ones (row_group_size)"
        )
    return ShuffleWindows(opened.rows, opened.nbytes, half, batch_size, seed, shuffle=shuffle)


def order_in_words(order: Order | ShuffleWindows) -> str:
    """Describe how well rows are shuffled."""
    if not order.shuffled:
        return "in their order"
    if isinstance(order, Order):
        return "all shuffled together"
    groups = len(order.of(0)[0].groups)
    return f"shuffled {groups:,} at a time: a block has rows of {order.groups_seen():.1%} of them"


def warn_of_sorted(opened: OpenedTables, order: Order | ShuffleWindows) -> None:
    """Say that batches have rows of few row groups, where that matters."""
    if not order.shuffled or not isinstance(order, ShuffleWindows):
        return
    seen = order.groups_seen()
    if seen < _FEW and (column := opened.sorted_by()):
        say(
            f"the rows of {printable(opened.reading.tables.root)} are sorted by {column!r}, and a batch has rows "
            f"of {seen:.1%} of their {len(opened.rows):,} row groups only: raise shuffle_bytes, or write them "
            "shuffled"
        )


class TableWay(NamedTuple):
    """How a block is made: its shuffle window, the one that is read meanwhile, and its rows' places in memory."""

    shuffle_window: ShuffleWindow
    next: ShuffleWindow
    at: Ids


class TableSamples(SampleData):
    """Rows of tables; ``give`` is how lists of different length are handed out."""

    def __init__(
        self,
        opened: OpenedTables,
        order: Order | ShuffleWindows,
        threads: int,  # how many row groups are read at once
        give: Any = "ragged",
        allocate: Allocate = own_memory,  # returns memory for rows that vary
    ) -> None:
        self.opened, self.order, self._give = opened, order, give
        self.root = opened.reading.tables.root
        self.outputs = opened.reading.outputs
        self.is_varying = any(each.varies for each in self.outputs)  # whether rows are of different size
        sizes = (0 if each.varies else each.dtype.itemsize * math.prod(each.shape) for each in self.outputs)
        self.row_bytes = [*sizes]  # bytes of a row, of each column
        self.loader = GroupLoader(opened.reading, opened.groups, opened.rows, threads, allocate)

    @property
    def description(self) -> str:
        tables = self.opened.reading.tables.description
        return f"{self.order.samples:,} rows in {tables}, {order_in_words(self.order)}"

    def plans(self, at: Cursor, wanted: Wanted | None, joints: Joints) -> Iterator[Planned]:
        """Plan the blocks of a cycle; each has its ``TableWay``.

        All groups stay in memory where the order is not of shuffle windows.
        """
        if isinstance(order := self.order, Order):
            everything = ShuffleWindow(0, order.samples, tuple(range(len(self.opened.rows))))
            for block in planned(order.blocks(at, joints), wanted):
                yield block._replace(way=TableWay(everything, everything, block.ids))
            return
        shuffle_windows = [*order.of(at.cycle, joints), order.of(at.cycle + 1, joints)[0]]
        following = {one.sample: other for one, other in pairwise(shuffle_windows)}
        for shuffle_window, sample, ids, places in order.blocks(at, joints):
            for block in planned([(sample, ids)], wanted):
                own = places if block.kept is None else places[block.kept]
                yield block._replace(way=TableWay(shuffle_window, following[shuffle_window.sample], own))

    def enter(self, plan: Planned) -> Loaded:
        """Return the shuffle window of a block, and read the one that follows meanwhile."""
        return self.loader.enter(plan.way.shuffle_window, plan.way.next)

    def samples(self, plan: Planned) -> tuple[Samples, Any]:
        """Return the rows of a block, for a user's function."""
        return _one_by_one(self.rows(self.enter(plan), plan.way.at)), None

    def first(self) -> Iterator[tuple[str, Callable[[], Mapping[str, Any]]]]:
        """Yield the rows of the first group, each as where it lies and what reads it."""
        count, where = int(self.opened.rows[0]), self.opened.reading.tables.where(int(self.opened.groups[0]))
        loaded = self.loader.get(ShuffleWindow(0, count, (0,)))
        for row in range(count):
            yield f"{where}, row {row}", partial(self._row, loaded, row)

    def _row(self, loaded: Loaded, row: int) -> Mapping[str, Any]:
        return _one_by_one(self.rows(loaded, np.array([row])))[0]

    def rows(self, loaded: Loaded, at: Ids) -> dict[str, Any]:
        """Return rows of a shuffle window."""
        rows = len(at)
        sizes = [nbytes * rows for nbytes in self.row_bytes]
        offsets = [0, *accumulate(map(aligned, sizes))]
        memory = np.empty(offsets[-1], np.uint8)
        loaded.pick(at, memory, offsets)
        return {
            output.name: self._varying(output, loaded.varying[i][at])
            if output.varies
            else memory[start : start + size].view(output.dtype).reshape(rows, *output.shape)
            for i, (output, start, size) in enumerate(zip(self.outputs, offsets, sizes, strict=False))
        }

    def close(self) -> None:
        self.loader.close()

    def _varying(self, output: TableLeaf, picked: RaggedRows) -> Any:
        """Return rows of different length as they are given."""
        kind = output.columns[0].kind
        if kind == "list":
            return RaggedRows(picked.values, picked.offsets, self._give)
        data = picked.values.tobytes()
        found = [data[start:stop] for start, stop in pairwise(picked.offsets.tolist())]
        return [each.decode() for each in found] if kind == "text" else found


def _one_by_one(rows: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)]


class TableRows:
    """Makes blocks of tables' rows as they are."""

    skipped = 0

    def __init__(self, data: TableSamples) -> None:
        self._data = data
        self._slots: Slots | None = None
        self.block_bytes = (
            0 if data.is_varying else sum(aligned(nbytes * data.block_rows) for nbytes in data.row_bytes)
        )
        """Size of a full block; 0 where rows are of different size."""
        self._layout: Node | None = None

    def work_here(self) -> None:
        """It has no workers."""

    def use(self, slots: Slots) -> int:
        self._slots = slots
        return 0 if self._data.is_varying else _SLOTS

    def blocks(self, plans: Iterator[Planned], cycle: int) -> Iterator[SourceBlock]:
        """Yield the blocks of a plan."""
        for plan in plans:
            rows = len(plan.ids)
            if not rows:
                yield plan.block(None)
                continue
            loaded, at = self._data.enter(plan), plan.way.at
            slot = None if self._data.is_varying or self._slots is None else self._slots.take()
            if slot is None or self._slots is None:
                yield plan.block(self._data.rows(loaded, at))
                continue
            if self._layout is None:
                self._layout = describe(self._data.rows(loaded, at)).layout
            placement = place(self._layout, [nbytes * rows for nbytes in self._data.row_bytes])
            loaded.pick(at, self._slots.memory(slot), placement.leaf_offsets)
            yield plan.block(Filled(slot, rows, placement))

    def close(self) -> None:
        self._slots = None
