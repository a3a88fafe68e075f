"""Room in the ring: who has reserved it, ahead or for the block at hand, and where it is given back."""

from __future__ import annotations

import enum
from typing import NamedTuple, Protocol

from penstock.contracts import Cursor, SourceBlock
from penstock.memory.placement import Placement, place
from penstock.memory.slots import Filled, Slot, Slots
from penstock.tree import Strings, array_nodes

RING_SHARE = 4
"""Slots take one part in so many of the window."""


class NotNeeded(enum.Enum):
    """Why there is no room for a block."""

    SKIP = "nobody needs it, but somebody needs a later one"
    REOPEN = "somebody needs another position, or the feed ends"


class Reservation(NamedTuple):
    """Room in the ring that is one block's: it is published, or cancelled.

    Attributes:
        at: The block's first sample.
        rows: Its samples.
        offset: Where the room begins.
        slot: The slot in which the block lies already, if it does.
    """

    at: Cursor
    rows: int
    offset: int
    slot: Slot | None


class RingRoom(Protocol):
    """Where room is reserved, and blocks are published that lie there."""

    def reserve(self, at: Cursor, rows: int, nbytes: int, offset: int | None) -> int | NotNeeded:
        """Wait until somebody needs a block and there is room for it; where that begins.

        A block that lies in the ring already says at what ``offset``.
        """
        ...

    def reserve_ahead(self, nbytes: int) -> int | None:
        """Room for a block to come, or None while there is none."""
        ...

    def release(self, offset: int) -> None:
        """No block has come for this room."""
        ...

    def publish(self, at: Cursor, rows: int, offset: int, placement: Placement) -> None:
        """Announce a block that lies there; its room goes when its readers have released it."""
        ...


class SlotPool:
    """Reserves the room of a feed's blocks: of the one at hand, and of slots, kept on offer while a source runs.

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
        room: RingRoom,
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

    def reserve(self, cycle: int, block: SourceBlock, nbytes: int) -> Reservation | NotNeeded:
        """Wait for room for a block that somebody needs; the slot of one that nobody needs serves the next.

        Args:
            cycle: In which it comes.
            nbytes: The room that it takes.
        """
        slot = block.tree.slot if isinstance(block.tree, Filled) else None
        at = Cursor(cycle, block.sample)
        offset = self._room.reserve(at, block.rows, nbytes, None if slot is None else slot.offset)
        if not isinstance(offset, NotNeeded):
            return Reservation(at, block.rows, offset, slot)
        if slot is not None:
            self._slots.offer(slot)
        return offset

    def publish(self, reserved: Reservation, placement: Placement) -> None:
        """Announce the block that lies there now. From here on its room is the trainers'."""
        if reserved.slot is not None:
            self._out.remove(reserved.slot)
        self._room.publish(reserved.at, reserved.rows, reserved.offset, placement)
        if self._most is None:
            self._most = self._measure(reserved.rows, placement)
        self.refill()

    def cancel(self, reserved: Reservation) -> None:
        """Give the room back: nothing is published there. A slot goes back with the others."""
        if reserved.slot is None:
            self._room.release(reserved.offset)

    def refill(self) -> None:
        """Offer what there is room for."""
        while len(self._out) < (self._most or 0):
            offset = self._room.reserve_ahead(self._slot_bytes)
            if offset is None:
                break
            slot = Slot(offset, self._slot_bytes)
            self._out.add(slot)
            self._slots.offer(slot)

    def recall(self) -> None:
        """Take all slots back, those too that were filled in vain. Nobody may be filling one."""
        while self._slots.take() is not None:
            pass
        for slot in self._out:
            self._room.release(slot.offset)
        self._out.clear()

    def _measure(self, rows: int, placement: Placement) -> int:
        """How many slots there can be, by a block of so many rows."""
        layout, _, leaf_bytes, _ = placement
        if not leaf_bytes or any(isinstance(node, Strings) for node in array_nodes(layout)):
            return 0
        return self._affordable(place(layout, [n // rows * self._batch_size for n in leaf_bytes]).nbytes)

    def _affordable(self, slot_bytes: int) -> int:
        self._slot_bytes = slot_bytes
        return min(self._wanted, self._most_bytes // slot_bytes)
