"""Which blocks lie in the ring, and who holds them: a block's room is freed when nobody does."""

from __future__ import annotations

from penstock.contracts import Cursor
from penstock.feed.feeder.subscriber import PublishedBlock, Subscriber
from penstock.memory.room import Room
from penstock.memory.slots import Placement
from penstock.subsets.selection import Bitmap


class HeldBlocks:
    """The blocks in a ring, as its members hold them.

    Args:
        room: The ring's bytes.
        samples: Samples in a cycle; None when unknown.

    Attributes:
        by_number: The blocks, in the order in which they were published.
    """

    def __init__(self, room: Room, samples: int | None) -> None:
        self.by_number: dict[int, PublishedBlock] = {}
        self._room = room
        self._samples = samples
        self._number = 0

    def add(
        self,
        at: Cursor,
        rows: int,
        offset: int,
        placement: Placement,
        published_ns: int,
        ids: bytes,
        kept: bytes,
        union: Bitmap | None,
    ) -> PublishedBlock:
        """Add a block that nobody holds yet; see ``PublishedBlock``. Give it to a member, or free it."""
        block = PublishedBlock(self._number, at, rows, offset, placement, published_ns, ids, kept, union)
        self._number += 1
        self.by_number[block.number] = block
        return block

    def end(self, block: PublishedBlock) -> Cursor:
        """Return the position after a block."""
        return block.at.after(block.rows, self._samples)

    def up_to(self, position: Cursor) -> list[PublishedBlock]:
        """Return the newest blocks that lead without a gap up to a position."""
        chain: list[PublishedBlock] = []
        expected = position
        for block in reversed(self.by_number.values()):
            if self.end(block) != expected:
                break
            chain.append(block)
            expected = block.at
        return chain[::-1]

    def give(self, member: Subscriber, block: PublishedBlock) -> None:
        """Let a member hold a block that is sent to it; once more, if it holds it already."""
        if member.id not in block.holders:
            member.held_bytes += block.placement.nbytes
            member.held_rows += block.rows
        block.holders[member.id] = block.holders.get(member.id, 0) + 1
        member.held[member.sent] = block
        member.sent += 1
        member.unread += 1

    def release(self, member: Subscriber, ordinal: int) -> None:
        """Let a member release what it was sent under this number."""
        block = member.held.pop(ordinal)
        member.unread -= ordinal >= member.read
        block.holders[member.id] -= 1
        if block.holders[member.id]:
            return
        del block.holders[member.id]
        member.held_bytes -= block.placement.nbytes
        member.held_rows -= block.rows
        self.free_if_unused(block)

    def free_if_unused(self, block: PublishedBlock) -> None:
        """Free the room of a block if nobody holds it, and it need not stay."""
        if not block.holders and not block.stays:
            self._room.release(block.offset)
            del self.by_number[block.number]
