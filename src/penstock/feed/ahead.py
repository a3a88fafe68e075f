"""Room that is reserved ahead for the blocks that a source's workers are making."""

from __future__ import annotations

from penstock.contracts import SourceBlock
from penstock.feed.server import Server
from penstock.feed.writer import Parcel
from penstock.memory.room import aligned
from penstock.memory.slots import Slot, Slots
from penstock.tree import Strings, array_nodes


class Ahead:
    """Keeps slots on offer while a source runs, in up to a quarter of the window.

    Slots are of one size, that of a full block, so there are none where blocks
    have strings, whose bytes vary. S of them in a ring of at least (2S + 1)
    times that size leave a gap that fits a block, however they lie: the feed
    cannot come to wait for room that only later blocks hold.

    Args:
        slots: Where they are offered.
        server: Reserves their room.
        under_way: Blocks that the source is making at once, at the most; 0 if it cannot fill slots.
        capacity_bytes: Size of the ring.
        batch_size: Rows of a full block.
    """

    def __init__(
        self, slots: Slots, server: Server, *, under_way: int, capacity_bytes: int, batch_size: int
    ) -> None:
        self._slots = slots
        self._server = server
        self._under_way = under_way
        self._capacity_bytes = capacity_bytes
        self._batch_size = batch_size
        self._out: set[Slot] = set()
        self._most: int | None = None
        self._slot_bytes = 0

    def published(self, block: SourceBlock, parcel: Parcel) -> None:
        """A block has gone into the ring: its slot, if it had one, is the trainers' now, and another is due."""
        if parcel.slot is not None:
            self._out.remove(parcel.slot)
        if self._most is None:
            self._most = self._measure(block, parcel)
        self.refill()

    def skipped(self, parcel: Parcel) -> None:
        """A block is not wanted: its slot, if it had one, serves the next."""
        if parcel.slot is not None:
            self._slots.offer(parcel.slot)

    def refill(self) -> None:
        """Offer what there is room for."""
        while len(self._out) < (self._most or 0) and (slot := self._server.slot(self._slot_bytes)) is not None:
            self._out.add(slot)
            self._slots.offer(slot)

    def recall(self) -> None:
        """Take all slots back, those too that were filled in vain. Nobody may be filling one."""
        while self._slots.take() is not None:
            pass
        for slot in self._out:
            self._server.release_slot(slot)
        self._out.clear()

    def _measure(self, block: SourceBlock, parcel: Parcel) -> int:
        """How many slots there can be."""
        if self._under_way == 0 or any(isinstance(node, Strings) for node in array_nodes(parcel.layout)):
            return 0
        self._slot_bytes = sum(aligned(n // block.rows * self._batch_size) for n in parcel.leaf_bytes)
        return min(self._under_way + 1, self._capacity_bytes // (4 * self._slot_bytes))
