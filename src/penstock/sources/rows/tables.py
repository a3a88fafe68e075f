"""Blocks of the rows of tables: whole columns at a time, gathered straight into the ring."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
from penstock.sources.tables.loaded import Loaded, TableLeaf
from penstock.sources.tables.loading import GroupLoader
from penstock.sources.tables.opening import OpenedTables
from penstock.sources.tables.shuffle_windows import ShuffleWindow, ShuffleWindows
from penstock.tree import Node, RaggedRows, describe

_SLOTS = 2
"""A block is written while the one before is announced."""


def order_of(
    opened: OpenedTables, shuffle_bytes: int, batch_size: int, segments: int | None, seed: int, *, shuffle: bool
) -> Order | ShuffleWindows:
    """Return the order of tables' rows: of shuffle windows where they do not fit in memory."""
    total = int(opened.nbytes.sum())
    if total <= shuffle_bytes:
        return Order(int(opened.rows.sum()), batch_size, segments, seed, shuffle=shuffle)
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


class TableWay(NamedTuple):
    """How a block is made: its shuffle window, the one that is read meanwhile, and its rows' places in memory."""

    shuffle_window: ShuffleWindow
    next: ShuffleWindow
    at: Ids


def table_plans(
    order: Order | ShuffleWindows, groups: int, at: Cursor, wanted: Wanted | None, joints: Joints
) -> Iterator[Planned]:
    """Plan the blocks of a cycle, from the one that holds a place on; each has its ``TableWay``.

    All of the ``groups`` stay in memory where the order is not of shuffle windows.
    """
    if isinstance(order, Order):
        everything = ShuffleWindow(0, order.samples, tuple(range(groups)))
        for block in planned(order.blocks(at, joints), wanted):
            yield block._replace(way=TableWay(everything, everything, block.ids))
        return
    shuffle_windows = [*order.of(at.cycle, joints), order.of(at.cycle + 1, joints)[0]]
    following = {one.sample: other for one, other in pairwise(shuffle_windows)}
    for shuffle_window, sample, ids, places in order.blocks(at, joints):
        for block in planned([(sample, ids)], wanted):
            own = places if block.kept is None else places[block.kept]
            yield block._replace(way=TableWay(shuffle_window, following[shuffle_window.sample], own))


class TableRows:
    """Makes blocks of tables' rows, ``rows`` at most; ``give`` is how lists of different length are handed out."""

    def __init__(self, loader: GroupLoader, outputs: Sequence[TableLeaf], give: Any, rows: int) -> None:
        self._loader, self._outputs, self._give = loader, outputs, give
        self._slots: Slots | None = None
        self._is_varying = any(output.varies for output in outputs)
        self._row_bytes = [0 if each.varies else each.dtype.itemsize * math.prod(each.shape) for each in outputs]
        self.block_bytes = 0 if self._is_varying else sum(aligned(nbytes * rows) for nbytes in self._row_bytes)
        """Size of a full block; 0 where rows are of different size."""
        self._layout: Node | None = None

    def fill(self, slots: Slots) -> int:
        self._slots = slots
        return 0 if self._is_varying else _SLOTS

    def blocks(self, plans: Iterator[Planned]) -> Iterator[SourceBlock]:
        """Yield the blocks of a plan."""
        for plan in plans:
            rows, way = len(plan.ids), plan.way
            if not rows:
                yield plan.block(None)
                continue
            loaded = self._loader.enter(way.shuffle_window, way.next)
            slot = None if self._is_varying or self._slots is None else self._slots.take()
            if slot is None or self._slots is None:
                yield plan.block(self.rows(loaded, way.at))
                continue
            if self._layout is None:
                self._layout = describe(self.rows(loaded, way.at)).layout
            placement = place(self._layout, [nbytes * rows for nbytes in self._row_bytes])
            loaded.pick(way.at, self._slots.memory(slot), placement.leaf_offsets)
            yield plan.block(Filled(slot, rows, placement))

    def rows(self, loaded: Loaded, at: Ids) -> dict[str, Any]:
        """Return rows of a shuffle window."""
        rows = len(at)
        sizes = [nbytes * rows for nbytes in self._row_bytes]
        offsets = [0, *accumulate(map(aligned, sizes))]
        memory = np.empty(offsets[-1], np.uint8)
        loaded.pick(at, memory, offsets)
        return {
            output.name: self._varying(output, loaded.varying[i][at])
            if output.varies
            else memory[start : start + size].view(output.dtype).reshape(rows, *output.shape)
            for i, (output, start, size) in enumerate(zip(self._outputs, offsets, sizes, strict=False))
        }

    def close(self) -> None:
        self._slots = None
        self._loader.close()

    def _varying(self, output: TableLeaf, picked: RaggedRows) -> Any:
        """Return rows of different length as they are given."""
        kind = output.columns[0].kind
        if kind == "list":
            return RaggedRows(picked.values, picked.offsets, self._give)
        data = picked.values.tobytes()
        found = [data[start:stop] for start, stop in pairwise(picked.offsets.tolist())]
        return [each.decode() for each in found] if kind == "text" else found
