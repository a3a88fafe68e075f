"""What a trainer receives and holds on one connection: blocks, from announcement until their release is sent."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from penstock.contracts import Cursor, Ids, Ring
from penstock.errors import BadSetting, WindowHeld
from penstock.feed import wire
from penstock.feed.trainer.validation import MessageValidator
from penstock.memory.room import aligned
from penstock.tree import Ragged, Scalar


class Mine(NamedTuple):
    """The rows of a block that a trainer takes: which of its rows they are, and where among those it has."""

    rows: Ids
    lie: Ids


class ReceivedBlock:
    """A block that lies in the ring for this trainer, until it is released."""

    def __init__(self, message: wire.BlockAnnounced, ordinal: int, validator: MessageValidator) -> None:
        assert validator.placement is not None
        self._validator = validator  # has checked the message; knows the block's tree, and reads its lists
        self.at = Cursor(message.cycle, message.sample)  # its first sample
        self.rows = message.rows  # how many samples it has
        self.ordinal = ordinal  # how many blocks were announced on this connection before it
        self.nodes = validator.nodes  # the tree's leaves, in order
        self.published_ns = message.published_ns  # when, by the monotonic clock
        self.ids = message.ids
        """Numbers of its samples in the data set, as a message has them; empty if nobody knows them."""
        self.kept = validator.kept  # which of its rows it has; None for all
        self.stored = message.rows if self.kept is None else len(self.kept)  # how many these are
        self.mine: Mine | None = None  # those that this trainer takes, once it has selected them
        self.offset = message.offset  # where it lies in the ring
        self.placement = validator.placement  # its tree, and where each leaf lies
        self.nbytes = self.placement.nbytes  # bytes from its offset to the end of its last leaf
        self.leaves: list[Any] = []  # the bytes of each of ``nodes``, once ``Holdings.open`` has filled them in
        self._offsets: dict[int, Ids] = {}
        self.loans: set[object] = set()  # loans of it that have not ended
        self.released = False  # whether the stream of rows is past it, and only loans hold it

    def scalars(self, encoded: memoryview) -> list[Scalar]:
        """Decode one of its leaves, a list of scalars."""
        return self._validator.scalars(encoded, self.stored)

    def offsets(self, leaf: int, read: Callable[[Any], memoryview]) -> Ids:
        """Return where the rows of a ragged leaf begin and end; ``read`` brings bytes of it to the host."""
        if leaf not in self._offsets:
            node = self.nodes[leaf]
            assert isinstance(node, Ragged)
            self._offsets[leaf] = self._validator.offsets(node, self.leaves[leaf], read, self.stored)
        return self._offsets[leaf]


class CycleEnded(msgspec.Struct, frozen=True):
    """Stands in place of a block: a cycle of unknown length is over."""

    cycle: int


_BLOCKS_FOR_VIEWS = 3
_MOST_UNSENT = 16
_MOST_UNSENT_BYTES = 2 << 20
_UNSENT_SHARE = 32
"""Releases are sent once they are this many (or fewer), these bytes, or this part (1/32) of the window."""


def most_unsent(prefetch: int | None, batches: int | None) -> int:
    """Return how many releases may wait: few of those that the feeder has ready, or blocks come in bursts.

    It has ``prefetch`` batches ready, if that was set; a cycle has ``batches`` blocks, None when unknown.
    """
    ready = min(prefetch or 4 * _MOST_UNSENT, batches or 4 * _MOST_UNSENT)
    return min(_MOST_UNSENT, max(1, ready // 4))


class Holdings:
    """Announced blocks in order, the loans of them, and the releases that are yet to be sent.

    Whatever statement an asynchronous exception breaks off (Ctrl-C, a signal
    handler), every step can be repeated from where it stood. CPython raises
    such an exception after a call, at the beginning of a function and where a
    loop goes back, but not between plain assignments: changes that belong
    together are assignments in a row. A release is forgotten after it has been
    sent; the feeder ignores one that is sent twice.

    Views may die in any thread, in the middle of any statement.
    """

    def __init__(
        self,
        ring: Ring,
        window_bytes: int,
        *,
        most_unsent: int,
        send: Callable[[list[int]], None],
        idle: Callable[[], None],
    ) -> None:
        self.items: dict[int, ReceivedBlock | CycleEnded] = {}  # blocks and ends of cycles, by a running index
        self.first = self.end = 0  # first index in ``items``, and the one after the last
        self.unsent: dict[int, int] = {}  # bytes of released blocks whose release has not been sent, by ordinal
        self.largest_bytes = 0  # size of the largest block so far
        self._ring = ring  # where the blocks lie
        self._window_bytes = window_bytes  # size of the ring
        self._most_unsent = most_unsent  # releases that may wait to be sent
        self._most_unsent_bytes = min(_MOST_UNSENT_BYTES, window_bytes // _UNSENT_SHARE)
        self.borrow = False  # whether leaves are views that the trainer may hold
        self._send = send  # sends the ordinals of released blocks to the feeder
        self._idle = idle  # called when the last of the loans has ended
        self._lent: dict[int, ReceivedBlock] = {}  # by ordinal

    def open(self, block: ReceivedBlock) -> None:
        """Fill in the bytes of the leaves of a block that has not been released."""
        if not block.leaves:
            if self.borrow:
                self._check_room_for_views(block)
                loan = object()
                memory = self._ring.lend(block.offset, block.nbytes, partial(self._loan_ended, block, loan))
                self._lent[block.ordinal] = block
                block.loans.add(loan)
            else:
                memory = self._ring.readable(block.offset, block.nbytes)
            block.leaves = block.placement.leaves_in(memory)

    def release_before(self, index: int) -> None:
        """Release all before this index, which is read no more; a lent block stays until its loans end."""
        while self.first < index:
            item = self.items[self.first]
            if isinstance(item, ReceivedBlock):
                item.leaves = []
                item.released = True
                if item.ordinal not in self._lent:
                    self.unsent[item.ordinal] = item.nbytes
            del self.items[self.first]
            self.first += 1
        if self._lent:
            self._end_loans()
        if len(self.unsent) >= self._most_unsent or sum(self.unsent.values()) >= self._most_unsent_bytes:
            self.flush()

    def bytes_before(self, index: int) -> int:
        """Return the size of the blocks that ``release_before`` would release."""
        nbytes = 0
        for i in range(self.first, index):
            if isinstance(item := self.items[i], ReceivedBlock):
                nbytes += aligned(item.nbytes)
        return nbytes

    @property
    def lent(self) -> list[int]:
        """Ordinals of the blocks that are lent."""
        return list(self._lent)

    @property
    def viewed_bytes(self) -> int:
        """Size of the blocks that only loans hold."""
        return sum(aligned(block.nbytes) for block in list(self._lent.values()) if block.released and block.loans)

    def check_views(self, feed: str) -> None:
        """Check that another stream of this trainer, of the same feed, has room beside the views that it holds."""
        if self.viewed_bytes * 2 > self._window_bytes:
            raise WindowHeld(
                f"the views that this trainer (pid {os.getpid()}) holds (borrow=True) take {self.viewed_bytes:,} "
                f"of the {self._window_bytes:,} bytes of the window of feed {feed!r}: let views go "
                "before it selects other samples, copy what you need, or give the feed a larger window"
            )

    def flush(self) -> None:
        """Send the feeder all releases."""
        if self._lent:
            self._end_loans()
        ordinals = list(self.unsent)
        if ordinals:
            self._send(ordinals)
            for ordinal in ordinals:
                self.unsent.pop(ordinal, None)

    def _check_room_for_views(self, block: ReceivedBlock) -> None:
        """Check that the next block fits before or behind a viewed one, wherever that lies."""
        if block.nbytes * _BLOCKS_FOR_VIEWS > self._window_bytes:
            raise BadSetting(
                f"borrow=True needs a window of at least {_BLOCKS_FOR_VIEWS} blocks, and this feed's "
                f"{self._window_bytes:,} bytes are fewer than {_BLOCKS_FOR_VIEWS} times its {block.nbytes:,}: "
                f'pass window="{-(-block.nbytes * 4 >> 20)}MiB" where the feed is made, or leave borrow out'
            )

    def _loan_ended(self, block: ReceivedBlock, loan: object) -> None:
        block.loans.discard(loan)
        self.flush()
        if not self._lent:
            self._idle()

    def _end_loans(self) -> None:
        """Release the blocks whose loans have all ended."""
        for ordinal, block in list(self._lent.items()):
            if block.released and not block.loans:
                self.unsent[ordinal] = block.nbytes
                self._lent.pop(ordinal, None)
