"""What comes to a trainer: blocks in the ring, and ends of cycles."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.contracts import Cursor
from penstock.feed import wire
from penstock.feed.trainer.validation import MessageValidator
from penstock.memory.placement import Placement
from penstock.tree import Scalar


class ReceivedBlock:
    """A block that lies in the ring for this trainer, until it is released.

    Args:
        message: Its announcement.
        ordinal: How many blocks this connection had announced before it.
        validator: Has checked it; says what its tree is, and reads its lists.

    Attributes:
        at: Its first sample.
        rows: How many samples it has.
        placement: Its tree, and where each leaf lies; it ends with the last of them.
        nodes: The tree's arrays and lists, in order.
        published_ns: When, by the monotonic clock.
        offset: Where it lies in the ring.
        leaves: The bytes of each of ``nodes``, once they have been asked for.
        loans: What was lent of it and still lives.
        released: The stream of rows is past it; only loans keep it.
    """

    __slots__ = (
        "_validator",
        "at",
        "leaves",
        "loans",
        "nodes",
        "offset",
        "ordinal",
        "placement",
        "published_ns",
        "released",
        "rows",
    )

    def __init__(self, message: wire.Block, ordinal: int, validator: MessageValidator) -> None:
        assert validator.layout is not None
        self._validator = validator
        self.at = Cursor(message.cycle, message.sample)
        self.rows = message.rows
        self.ordinal = ordinal
        self.nodes = validator.nodes
        self.published_ns = message.published_ns
        self.offset = message.offset
        self.placement = Placement(validator.layout, message.leaf_offsets, message.leaf_bytes, message.nbytes)
        self.leaves: list[Any] = []
        self.loans: set[object] = set()
        self.released = False

    @property
    def nbytes(self) -> int:
        """From where it lies to the end of its last leaf."""
        return self.placement.nbytes

    def scalars(self, encoded: memoryview) -> list[Scalar]:
        """The list of scalars that lies in these bytes, one of its leaves."""
        return self._validator.scalars(encoded, self.rows)


class CycleEnded(msgspec.Struct, frozen=True):
    """In place of a block: the cycle of a source of unknown length is over."""

    cycle: int
