"""Room in the ring, reserved for the block at hand or ahead, and given back."""

from __future__ import annotations

import enum
from typing import NamedTuple, Protocol

from penstock.contracts import Cursor, SourceBlock
from penstock.feed.named_rows import encode_ids, encode_kept
from penstock.memory.slots import Filled, Placement, Slot, Slots, place
from penstock.tree import Strings, array_nodes

RING_SHARE = 4
"""Slots take at most one part in so many of the window."""


class NotNeeded(enum.Enum):
    """Why there is no room for a block."""

    SKIP = "nobody needs it, but somebody needs a later one"
    REOPEN = "somebody needs another position, or the feed ends"


class Reservation(NamedTuple):
    """Room in the ring for one block, to be published or cancelled.

    Attributes:
        at: The block's first sample.
        rows: Its rows.
        stored: How many of them it has.
        offset: Where the room begins.
        slot: The slot in which the block lies already, if it does.
        ids: Numbers of its samples in the data set, as a message has them.
        kept: Which of its rows it has, as a message says it.
    """

    at: Cursor
    rows: int
    stored: int
    offset: int
    slot: Slot | None
    ids: bytes
    kept: bytes


class RingRoom(Protocol):
    """Reserves room in the ring, and publishes the blocks written there."""

    def reserve(self, at: Cursor, rows: int, nbytes: int, offset: int | None) -> int | NotNeeded:
        """Wait until a block is needed and has room; return where that begins, or why not.

        ``offset`` is that of a block which lies in the ring already.
        """
        ...

    def reserve_ahead(self, nbytes: int) -> int | None:
        """Reserve room for a block to come; None while there is none."""
        ...

    def release(self, offset: int) -> None:
        """Give back room for which no block has come."""
        ...

    def publish(self, at: Cursor, rows: int, offset: int, placement: Placement, ids: bytes, kept: bytes) -> None:
        """Announce a written block; its room is freed when its readers have released it."""
        ...


class SlotPool:
    """Reserves room for a feed's blocks: for the one at hand, and as slots offered to the source while it runs.

    Slots are of one size, that of a full block, so there are none where blocks
    have strings, whose bytes vary. They may take a quarter of the window
    (``RING_SHARE``): S of them in at least (2S + 1) times their size
    leave a gap that fits a block, however they lie, so the feed never waits
    for room that only later blocks hold.

    Args:
        slots: Where slots are offered.
        room: Where they are reserved.
        most: Slots that the source can use at once; 0 if it cannot fill any.
        window_bytes: Size of the ring.
        batch_size: Rows of a full block.
        slot_bytes: Size of a slot; None to take it from the first block.
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
        """Reserve a block's room, waiting for it; offer the slot of an unneeded block again.

        Args:
            cycle: Cycle of the block.
            block: Block to publish.
            nbytes: Room that it takes, in bytes.
        """
        slot = block.tree.slot if isinstance(block.tree, Filled) else None
        at = Cursor(cycle, block.sample)
        offset = self._room.reserve(at, block.rows, nbytes, None if slot is None else slot.offset)
        if not isinstance(offset, NotNeeded):
            kept = encode_kept(block.kept, block.rows)
            return Reservation(at, block.rows, block.stored, offset, slot, encode_ids(block.ids), kept)
        if slot is not None:
            self._slots.offer(slot)
        return offset

    def publish(self, reserved: Reservation, placement: Placement) -> None:
        """Announce the block written there; its room is the trainers' from now on."""
        if reserved.slot is not None:
            self._out.remove(reserved.slot)
        at, rows, stored, offset, _, ids, kept = reserved
        self._room.publish(at, rows, offset, placement, ids, kept)
        if self._most is None and stored:
            self._most = self._measure(stored, placement)
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
        if not leaf_bytes or any(isinstance(node, Strings) for node in array_nodes(layout)):
            return 0
        return self._affordable(place(layout, [n // rows * self._batch_size for n in leaf_bytes]).nbytes)

    def _affordable(self, slot_bytes: int) -> int:
        self._slot_bytes = slot_bytes
        return min(self._wanted, self._most_bytes // slot_bytes)
