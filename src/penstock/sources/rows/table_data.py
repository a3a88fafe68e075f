"""The rows of tables as the data of a source: their order, and who makes their blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from penstock.basics.terminal import printable, say
from penstock.contracts import Cursor, Ids, Joints, SourceBlock, Wanted
from penstock.memory.slots import Slots
from penstock.sources.order import Planned
from penstock.sources.rows.samples import SampleBlocks
from penstock.sources.rows.settings import RowSettings
from penstock.sources.rows.tables import TableRows, order_in_words, order_of, table_plans
from penstock.sources.tables.loading import GroupLoader
from penstock.sources.tables.opening import OpenedTables
from penstock.sources.tables.shuffle_windows import ShuffleWindow, ShuffleWindows

_FEW = 0.5
"""A block that has rows of fewer of the row groups has too few, where these are sorted."""


class TableData:
    """Rows of tables."""

    def __init__(self, opened: OpenedTables, settings: RowSettings) -> None:
        self._opened, self._settings, s = opened, settings, settings
        self.order = order_of(opened, s.shuffle_bytes, s.batch_size, s.segments, s.seed, shuffle=s.shuffle)
        """The order of rows; of shuffle windows where they do not fit in memory."""
        kept = str(opened.reading.condition)
        self.identity = (opened.reading.tables.parts, opened.groups.tolist(), opened.rows.tolist(), kept)
        """What decides which rows there are."""
        loader = GroupLoader(opened.reading, opened.groups, opened.rows, s.workers)
        give = "padded" if s.ragged == "pad" else "ragged"
        self._rows = TableRows(loader, opened.reading.outputs, give, min(s.batch_size, self.order.samples))
        self._loader = loader
        self._decoded = None if s.decode is None else self._decoding()
        self.block_bytes = self._rows.block_bytes  # size of a full block; 0 where rows are of different size
        if self._decoded is not None:
            self.block_bytes = self._decoded.block_bytes if self._decoded.in_ring else 0
        self._warn()

    @property
    def description(self) -> str:
        tables = self._opened.reading.tables
        text = f"{self.order.samples:,} rows in {tables.description}, {order_in_words(self.order)}"
        if self._decoded is not None and self._decoded.skipped:
            text += f"; {self._decoded.skipped:,} bad ones were skipped"
        return text

    def plans(self, at: Cursor, wanted: Wanted | None, joints: Joints) -> Iterator[Planned]:
        return table_plans(self.order, len(self._opened.rows), at, wanted, joints)

    def load(self, plans: Iterator[Planned], cycle: int) -> Iterator[SourceBlock]:
        return self._rows.blocks(plans) if self._decoded is None else self._decoded.blocks(plans, cycle)

    def work_here(self) -> None:
        if self._decoded is not None:
            self._decoded.work_here()

    def fill(self, slots: Slots) -> int:
        return self._rows.fill(slots) if self._decoded is None else self._decoded.use(slots)

    def close(self) -> None:
        self._rows.close()
        if self._decoded is not None:
            self._decoded.close()

    def _decoding(self) -> SampleBlocks:
        tables = self._opened.reading.tables
        count = int(self._opened.rows[0])
        loaded, where = self._loader.get(ShuffleWindow(0, count, (0,))), tables.where(int(self._opened.groups[0]))
        some = ((i, _samples(self._rows.rows(loaded, np.array([i])))[0]) for i in range(count))
        first = ((f"{where}, row {i}", partial(dict[str, Any], sample)) for i, sample in some)
        try:
            recipe = self._settings.recipe(first, tables.root)
        finally:
            self._loader.close()
        samples = self.order.samples
        return SampleBlocks(tables.root, self._fetched, self._check, recipe, self._settings, samples, None)

    def _fetched(self, plan: Planned) -> Sequence[Mapping[str, Any]]:
        loaded = self._loader.enter(plan.way.shuffle_window, plan.way.next)
        return _samples(self._rows.rows(loaded, plan.way.at))

    def _check(self, ids: Ids) -> None:
        """Row groups are checked when they are read."""

    def _warn(self) -> None:
        if not self.order.shuffled or not isinstance(self.order, ShuffleWindows):
            return
        seen = self.order.groups_seen()
        if seen < _FEW and (column := self._opened.sorted_by()):
            say(
                f"the rows of {printable(self._opened.reading.tables.root)} are sorted by {column!r}, and a batch "
                f"has rows of {seen:.1%} of their {len(self._opened.rows):,} row groups only: raise "
                "shuffle_bytes, or write them shuffled"
            )


def _samples(rows: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return rows one by one."""
    return [dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)]
