"""Room in the ring, reserved for the block at hand or ahead, and given back."""

from __future__ import annotations

from typing import NamedTuple

from penstock.contracts import Cursor, SourceBlock
from penstock.feed.feeder.blocks import PublishedBlock
from penstock.feed.feeder.publisher import NotNeeded, Publisher
from penstock.feed.named_rows import encode_ids, encode_kept
from penstock.memory.slots import Filled, Placement, Slot, Slots, place
from penstock.tree import Array, array_nodes

RING_SHARE = 4
"""Slots take at most this part (1/4) of the window."""


class Reservation(NamedTuple):
    """Room in the ring for one block, to be published or cancelled."""

    at: Cursor  # the block's first sample
    block: SourceBlock
    offset: int  # where the room begins
    slot: Slot | None  # the slot in which the block lies already, if it does


class SlotPool:
    """Reserves room for a feed's blocks: for the one at hand, and as slots offered to the source while it runs.

    Slots are of one size, that of a full block, so there are none where blocks
    have strings or ragged rows, whose bytes vary. They may take a quarter of the window
    (``RING_SHARE``): S of them in at least (2S + 1) times their size
    leave a gap that fits a block, however they lie, so the feed never waits
    for room that only later blocks hold.
    """

    def __init__(
        self,
        slots: Slots,
        room: Publisher,
        *,
        most: int,  # slots that the source can use at once; 0 if it cannot fill any
        window_bytes: int,  # size of the ring
        batch_size: int,
        slot_bytes: int | None = None,  # size of a slot; None to take it from the first block
    ) -> None:
        self._slots = slots  # where slots are offered
        self._room = room  # where they are reserved
        self._wanted = most
        self._most_bytes = window_bytes // RING_SHARE
        self._batch_size = batch_size  # rows of a full block
        self._out: set[Slot] = set()
        self._most = None if slot_bytes is None else self._affordable(slot_bytes)

    def reserve(self, cycle: int, block: SourceBlock, nbytes: int) -> Reservation | NotNeeded:
        """Reserve a block's room, waiting for it; offer the slot of an unneeded block again."""
        slot = block.tree.slot if isinstance(block.tree, Filled) else None
        at = Cursor(cycle, block.sample)
        offset = self._room.reserve(at, block.rows, nbytes, None if slot is None else slot.offset)
        if not isinstance(offset, NotNeeded):
            return Reservation(at, block, offset, slot)
        if slot is not None:
            self._slots.offer(slot)
        return offset

    def publish(self, reserved: Reservation, placement: Placement) -> None:
        """Announce the block written there; its room is the trainers' from now on."""
        if reserved.slot is not None:
            self._out.remove(reserved.slot)
        at, block, offset, _ = reserved
        ids, kept = encode_ids(block.ids), encode_kept(block.kept, block.rows)
        self._room.publish(PublishedBlock(at, block.rows, offset, placement, ids, kept))
        if self._most is None and block.stored:
            self._most = self._measure(block.stored, placement)
        self.refill()

    def cancel(self, reserved: Reservation) -> None:
        """Give the room back unpublished; a slot goes back in ``recall``."""
        if reserved.slot is None:
            self._room.release(reserved.offset)

    def refill(self) -> None:
        """Offer as many slots as there is room for."""
        while len(self._out) < (self._most or 0):
            offset = self._room.reserve_ahead(self._slot_bytes)
            if offset is None:
                break
            slot = Slot(offset, self._slot_bytes)
            self._out.add(slot)
            self._slots.offer(slot)

    def recall(self) -> None:
        """Take all slots back, filled or not. Nobody may be filling one."""
        while self._slots.take() is not None:
            pass
        for slot in self._out:
            self._room.release(slot.offset)
        self._out.clear()

    def _measure(self, rows: int, placement: Placement) -> int:
        """Return how many slots there can be, going by a block of ``rows`` rows."""
        layout, _, leaf_bytes, _ = placement
        if not leaf_bytes or not all(isinstance(node, Array) for node in array_nodes(layout)):
            return 0
        return self._affordable(place(layout, [n // rows * self._batch_size for n in leaf_bytes]).nbytes)

    def _affordable(self, slot_bytes: int) -> int:
        self._slot_bytes = slot_bytes
        return min(self._wanted, self._most_bytes // slot_bytes)
