"""What comes to a trainer: blocks in the ring, and ends of cycles."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.contracts import Cursor
from penstock.feed import wire
from penstock.feed.trainer.validation import Sense
from penstock.tree import Scalar


class ReceivedBlock:
    """A block that lies in the ring for this trainer, until it is released.

    Args:
        message: Its announcement.
        ordinal: How many blocks this connection had announced before it.
        sense: Has checked it; says what its tree is, and reads its lists.

    Attributes:
        at: Its first sample.
        rows: How many samples it has.
        layout: Its tree.
        nodes: That tree's arrays and lists, in order.
        published_ns: When, by the monotonic clock.
        offset: Where it lies in the ring.
        nbytes: From there to the end of its last leaf.
        leaves: The bytes of each of ``nodes``, once they have been asked for.
        loans: What was lent of it and still lives.
        released: The stream of rows is past it; only loans keep it.
    """

    __slots__ = (
        "_sense",
        "at",
        "layout",
        "leaf_bytes",
        "leaf_offsets",
        "leaves",
        "loans",
        "nbytes",
        "nodes",
        "offset",
        "ordinal",
        "published_ns",
        "released",
        "rows",
    )

    def __init__(self, message: wire.Block, ordinal: int, sense: Sense) -> None:
        assert sense.layout is not None
        self._sense = sense
        self.at = Cursor(message.cycle, message.sample)
        self.rows = message.rows
        self.ordinal = ordinal
        self.layout, self.nodes = sense.layout, sense.nodes
        self.published_ns = message.published_ns
        self.offset = message.offset
        self.leaf_offsets, self.leaf_bytes = message.leaf_offsets, message.leaf_bytes
        self.nbytes = message.nbytes
        self.leaves: list[Any] = []
        self.loans: set[object] = set()
        self.released = False

    def scalars(self, encoded: memoryview) -> list[Scalar]:
        """The list of scalars that lies in these bytes, one of its leaves."""
        return self._sense.scalars(encoded, self.rows)


class CycleEnded(msgspec.Struct, frozen=True):
    """In place of a block: the cycle of a source of unknown length is over."""

    cycle: int
