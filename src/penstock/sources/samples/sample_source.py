"""What sources of samples share: data in an order, and who makes their blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy.typing as npt

from penstock.basics.sizes import random_seed, size_from, whole_number
from penstock.contracts import NO_JOINTS, Cursor, Ids, Joints, Place, Records, SourceBlock, Wanted
from penstock.memory.slots import Slots
from penstock.sources.order import Order, Planned, planned
from penstock.sources.samples.blocks import SampleBlocks, SampleData
from penstock.sources.sharding import Alone, rank_of

if TYPE_CHECKING:
    from penstock.sources.samples.tables import TableRows


class OrderSettings(NamedTuple):
    """What sources are told of their order."""

    shuffle_bytes: int  # memory in which rows of tables are shuffled
    batch_size: int
    segments: int | None
    seed: int
    shuffle: bool

    @classmethod
    def checked(
        cls, shuffle_bytes: int | str, batch_size: int, segments: int | None, seed: int, shuffle: bool
    ) -> OrderSettings:
        """Return them as they are used."""
        batch_size = whole_number("batch_size", batch_size, 1, 2**31 - 1)
        segments = None if segments is None else whole_number("segments", segments, 1)
        return cls(size_from("shuffle_bytes", shuffle_bytes), batch_size, segments, random_seed(seed), shuffle)

    def order(self, samples: int) -> Order:
        """Return the order of so many samples that are all shuffled together."""
        return Order(samples, self.batch_size, self.segments, self.seed, shuffle=self.shuffle)


class RecordSamples(SampleData):
    """Samples that lie each by itself; ``beside`` has a row for each of what else is known, such as its label."""

    def __init__(self, records: Records, order: Order, beside: npt.NDArray[Any] | None = None) -> None:
        self.records, self.order, self.beside = records, order, beside
        self.root = records.root

    @property
    def description(self) -> str:
        return self.records.description

    def plans(self, at: Cursor, wanted: Wanted | None, joints: Joints) -> Iterator[Planned]:
        return planned(self.order.blocks(at, joints), wanted)

    def samples(self, plan: Planned) -> tuple[list[Place], Any]:
        return self.records.places(plan.ids), None if self.beside is None else self.beside[plan.ids]

    def check(self, ids: Ids) -> None:
        self.records.check_unchanged(ids)


class SampleSource(Alone):
    """A source over data, and over what makes their blocks; the attributes are those of ``Source``."""

    def _open(
        self, data: SampleData, blocks: SampleBlocks | TableRows, *, drop_last: bool, shard: tuple[int, int] | None
    ) -> None:
        self._data, self._blocks = data, blocks
        self._follow(data.order, drop_last=drop_last)
        self.shard = rank_of(shard)
        if blocks.block_bytes:
            self.slot_bytes = self.block_bytes = blocks.block_bytes

    def plans(self, at: Cursor, wanted: Wanted | None = None, joints: Joints = NO_JOINTS) -> Iterator[Planned]:
        return self._data.plans(at, wanted, joints)

    def load(self, plans: Iterator[Planned], cycle: int) -> Iterator[SourceBlock]:
        return self._blocks.blocks(plans, cycle)

    def work_here(self) -> None:
        self._blocks.work_here()

    def fill(self, slots: Slots) -> int:
        return self._blocks.use(slots)

    def close(self) -> None:
        self._blocks.close()
        self._data.close()
