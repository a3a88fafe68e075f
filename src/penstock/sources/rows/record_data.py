"""Samples of shards with fields as the data of a source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.contracts import Cursor, FieldRecords, Joints, Place, SourceBlock, Wanted
from penstock.errors import BadSetting
from penstock.io.cache.cache import Cache
from penstock.memory.slots import Slots
from penstock.sources.order import Order, Planned, planned
from penstock.sources.records.files import read
from penstock.sources.rows.samples import SampleBlocks, SampleCaching
from penstock.sources.rows.settings import RowSettings


class RecordData:
    """Samples of shards; ``names`` gives fields by the names that they get, and is empty for all."""

    def __init__(
        self, records: FieldRecords, names: dict[str, str], settings: RowSettings, cache: Cache | None
    ) -> None:
        self._records, s = records, settings
        samples = len(records.names)
        self.order = Order(samples, s.batch_size, s.segments, s.seed, shuffle=s.shuffle)  # the order of samples
        self.identity = (list(records.names), list(records.parts))  # what decides which samples there are
        parse = records.parse.only(names.values()) if names else records.parse
        some = (records.places(np.array([i]))[0] for i in range(samples))
        first = ((place.where, lambda place=place: parse(read(place))) for place in some)
        recipe = s.recipe(first, records.root, names, parse)
        self._caching = None if cache is None else SampleCaching(cache, records, samples)
        check = records.check_unchanged
        self._blocks = SampleBlocks(records.root, self._places, check, recipe, s, samples, self._caching)
        self.block_bytes = self._blocks.block_bytes if self._blocks.in_ring else 0
        """Size of a full block; 0 where rows are of different size."""

    @property
    def description(self) -> str:
        text = self._records.description
        if self._caching is not None and (seen := self._caching.counts.hits + self._caching.counts.missed):
            text += f"; {self._caching.counts.hits / seen:.0%} of {seen:,} came from the cache"
        return text + (f"; {self._blocks.skipped:,} bad ones were skipped" if self._blocks.skipped else "")

    def plans(self, at: Cursor, wanted: Wanted | None, joints: Joints) -> Iterator[Planned]:
        return planned(self.order.blocks(at, joints), wanted)

    def load(self, plans: Iterator[Planned], cycle: int) -> Iterator[SourceBlock]:
        return self._blocks.blocks(plans, cycle)

    def work_here(self) -> None:
        self._blocks.work_here()

    def fill(self, slots: Slots) -> int:
        return self._blocks.use(slots)

    def close(self) -> None:
        self._blocks.close()

    def _places(self, plan: Planned) -> Sequence[Place]:
        return self._records.places(plan.ids)


def named_fields(columns: Any, fields: Sequence[str], where: str) -> dict[str, str]:
    """Return fields by the names that they get."""
    if columns is None:
        return {}
    listed = [columns] if isinstance(columns, str) else columns
    wanted: dict[str, Any] = {**columns} if isinstance(columns, Mapping) else {name: name for name in listed}
    for name, field in wanted.items():
        if not isinstance(field, str):
            raise BadSetting(
                f"columns[{name!r}]: only columns of tables are put together; use decode= for samples"
            )
        if field not in fields:
            raise BadSetting(f"{where} has no column {field!r}; it has {', '.join(fields)}")
    if not wanted:
        raise BadSetting(f"{where}: columns={columns!r} names no column; it has {', '.join(fields)}")
    return wanted
