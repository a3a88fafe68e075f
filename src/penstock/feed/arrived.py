"""What comes to a trainer: blocks in the ring, and ends of cycles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.contracts import Cursor
from penstock.feed import wire
from penstock.feed.sense import Sense
from penstock.memory.room import leaves_in
from penstock.tree import Array, Node, Scalar, Strings


class Arrived:
    """A block that lies in the ring for this trainer, until it is released.

    Args:
        message: Its announcement.
        memory: Its bytes.
        layout: Its tree.
        nodes: That tree's arrays and lists, in order.
        done: Called on release; None where views are handed out, whose death releases it.
        sense: Reads its lists.

    Attributes:
        at: Its first sample.
        rows: How many samples it has.
        leaves: The bytes of each of ``nodes``.
    """

    __slots__ = ("_done", "_sense", "at", "layout", "leaves", "nodes", "rows")

    def __init__(
        self,
        message: wire.Block,
        memory: Any,
        layout: Node,
        nodes: list[Array | Strings],
        done: Callable[[], None] | None,
        sense: Sense,
    ) -> None:
        self._done = done
        self._sense = sense
        self.at = Cursor(message.cycle, message.sample)
        self.rows = message.rows
        self.layout = layout
        self.nodes = nodes
        self.leaves = leaves_in(memory, message.leaf_offsets, message.leaf_bytes)

    def scalars(self, encoded: memoryview) -> list[Scalar]:
        """The list of scalars that lies in these bytes, one of its leaves."""
        return self._sense.scalars(encoded, self.rows)

    def release(self) -> None:
        """This trainer needs the block no more."""
        self.leaves = []
        if self._done is not None:
            self._done()


class CycleEnded(msgspec.Struct, frozen=True):
    """In place of a block: the cycle of a source of unknown length is over."""

    cycle: int
