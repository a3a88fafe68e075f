"""Room that is reserved ahead for the blocks that a source's workers are making."""

from __future__ import annotations

from typing import Protocol

from penstock.contracts import SourceBlock
from penstock.feed.feeder.writer import Parcel
from penstock.memory.room import placed
from penstock.memory.slots import Slot, Slots
from penstock.tree import Strings, array_nodes

RING_SHARE = 4
"""Slots take one part in so many of the window."""


class SlotRoom(Protocol):
    """Where slots are reserved."""

    def slot(self, nbytes: int) -> Slot | None:
        """Room for a block to come, or None while there is none."""
        ...

    def release_slot(self, slot: Slot) -> None:
        """No block has come for it."""
        ...


class SlotPool:
    """Keeps slots on offer while a source runs.

    Slots are of one size, that of a full block, so there are none where blocks
    have strings, whose bytes vary. They may take a quarter of the window
    (``RING_SHARE``): S of them in at least (2S + 1) times their size
    leave a gap that fits a block, however they lie, and the feed cannot come
    to wait for room that only later blocks hold.

    Args:
        slots: Where they are offered.
        room: Where they are reserved.
        most: Slots that the source can use at once; 0 if it cannot fill any.
        window_bytes: Size of the ring.
        batch_size: Rows of a full block.
        slot_bytes: Of a slot; None has the first block tell.
    """

    def __init__(
        self,
        slots: Slots,
        room: SlotRoom,
        *,
        most: int,
        window_bytes: int,
        batch_size: int,
        slot_bytes: int | None = None,
    ) -> None:
        self._slots = slots
        self._room = room
        self._wanted = most
        self._most_bytes = window_bytes // RING_SHARE
        self._batch_size = batch_size
        self._out: set[Slot] = set()
        self._most = None if slot_bytes is None else self._affordable(slot_bytes)

    def published(self, block: SourceBlock, parcel: Parcel) -> None:
        """A block has gone into the ring."""
        if self._most is None:
            self._most = self._measure(block, parcel)
        self.refill()

    def handing_out(self, slot: Slot) -> None:
        """A slot is about to be the trainers'."""
        self._out.remove(slot)

    def skipped(self, parcel: Parcel) -> None:
        """A block needs its slot, if it had one, no more: it serves the next."""
        if parcel.slot is not None:
            self._slots.offer(parcel.slot)

    def refill(self) -> None:
        """Offer what there is room for."""
        while len(self._out) < (self._most or 0) and (slot := self._room.slot(self._slot_bytes)) is not None:
            self._out.add(slot)
            self._slots.offer(slot)

    def recall(self) -> None:
        """Take all slots back, those too that were filled in vain. Nobody may be filling one."""
        while self._slots.take() is not None:
            pass
        for slot in self._out:
            self._room.release_slot(slot)
        self._out.clear()

    def _measure(self, block: SourceBlock, parcel: Parcel) -> int:
        """How many slots there can be."""
        if not parcel.leaf_bytes or any(isinstance(node, Strings) for node in array_nodes(parcel.layout)):
            return 0
        return self._affordable(placed([n // block.rows * self._batch_size for n in parcel.leaf_bytes])[1])

    def _affordable(self, slot_bytes: int) -> int:
        self._slot_bytes = slot_bytes
        return min(self._wanted, self._most_bytes // slot_bytes)
