"""What a trainer receives: blocks in the ring, and ends of cycles."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from penstock.contracts import Cursor, Ids
from penstock.feed import wire
from penstock.feed.trainer.validation import MessageValidator
from penstock.tree import Scalar


class Mine(NamedTuple):
    """The rows of a block that a trainer takes: which of its rows they are, and where among those it has."""

    rows: Ids
    lie: Ids


class ReceivedBlock:
    """A block that lies in the ring for this trainer, until it is released.

    Args:
        message: Announcement of the block.
        ordinal: How many blocks were announced on this connection before it.
        validator: Has checked the message; knows the block's tree, and reads its lists.

    Attributes:
        at: Its first sample.
        rows: How many samples it has.
        placement: Its tree, and where each leaf lies.
        nodes: The tree's arrays and lists, in order.
        published_ns: When, by the monotonic clock.
        ids: Numbers of its samples in the data set, as a message has them; empty if nobody knows them.
        kept: Which of its rows it has; None for all.
        stored: How many these are.
        mine: Those that this trainer takes, once it has selected them.
        offset: Where it lies in the ring.
        leaves: The bytes of each of ``nodes``, once ``Holdings.open`` has filled them in.
        loans: Loans of it that have not ended.
        released: Whether the stream of rows is past it, and only loans keep it.
    """

    __slots__ = (
        "_validator",
        "at",
        "ids",
        "kept",
        "leaves",
        "loans",
        "mine",
        "nodes",
        "offset",
        "ordinal",
        "placement",
        "published_ns",
        "released",
        "rows",
        "stored",
    )

    def __init__(self, message: wire.Block, ordinal: int, validator: MessageValidator) -> None:
        assert validator.placement is not None
        self._validator = validator
        self.at = Cursor(message.cycle, message.sample)
        self.rows = message.rows
        self.ordinal = ordinal
        self.nodes = validator.nodes
        self.published_ns = message.published_ns
        self.ids = message.ids
        self.kept = validator.kept
        self.stored = message.rows if self.kept is None else len(self.kept)
        self.mine: Mine | None = None
        self.offset = message.offset
        self.placement = validator.placement
        self.leaves: list[Any] = []
        self.loans: set[object] = set()
        self.released = False

    @property
    def nbytes(self) -> int:
        """Bytes from its offset to the end of its last leaf."""
        return self.placement.nbytes

    def scalars(self, encoded: memoryview) -> list[Scalar]:
        """Decode one of its leaves, a list of scalars."""
        return self._validator.scalars(encoded, self.stored)


class CycleEnded(msgspec.Struct, frozen=True):
    """Stands in place of a block: a cycle of unknown length is over."""

    cycle: int
