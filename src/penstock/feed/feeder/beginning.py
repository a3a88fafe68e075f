"""The blocks from where a part of a cycle begins, kept a while for trainers that come within seconds."""

from __future__ import annotations

from penstock.feed.feeder.held_blocks import HeldBlocks
from penstock.feed.feeder.subscriber import PublishedBlock

_STAYS_NS = 20 * 10**9
_WINDOW_SHARE = 4
"""They take at most one part in so many of the window, and of the blocks that may be on their way."""


class Beginning:
    """Keeps blocks in the ring as a trainer would: all from a beginning on, or none.

    Args:
        held: The blocks in the ring.
        window_bytes: Size of the ring.
        most_blocks: Most blocks that may be on their way.
    """

    def __init__(self, held: HeldBlocks, window_bytes: int, most_blocks: int) -> None:
        self._held = held
        self._most_bytes = window_bytes // _WINDOW_SHARE
        self._most_blocks = most_blocks // _WINDOW_SHARE
        self._kept: list[PublishedBlock] = []
        self._bytes = 0
        self._until_ns = 0

    def begin(self, blocks: list[PublishedBlock]) -> None:
        """Keep these, the newest of the ring, if they are not too many: a part begins with them. Others go."""
        nbytes = sum(block.placement.nbytes for block in blocks)
        fits = nbytes <= self._most_bytes and len(blocks) <= self._most_blocks
        self._until_ns = blocks[0].published_ns + _STAYS_NS
        self._replace(blocks if fits else [])

    def add(self, block: PublishedBlock) -> None:
        """Keep a block that was just published, if all from the beginning on are kept and it is not too much."""
        nbytes = self._bytes + block.placement.nbytes
        fits = nbytes <= self._most_bytes and len(self._kept) < self._most_blocks
        if fits and self._kept and self._held.end(self._kept[-1]) == block.at:
            block.stays = True
            self._kept.append(block)
            self._bytes = nbytes
        else:
            self.let_go()
        self.expire(block.published_ns)

    def expire(self, now_ns: int) -> None:
        """Let them go if they have stayed for long enough."""
        if now_ns > self._until_ns:
            self.let_go()

    @property
    def until_ns(self) -> int | None:
        """Until when they stay, by the monotonic clock; None if there are none."""
        return self._until_ns if self._kept else None

    def let_go(self) -> bool:
        """Let them go; return whether there were any."""
        any_kept = bool(self._kept)
        self._replace([])
        return any_kept

    def _replace(self, kept: list[PublishedBlock]) -> None:
        for block in kept:
            block.stays = True  # first: if Ctrl-C comes here, none is freed twice
        before, self._kept = self._kept, kept
        self._bytes = sum(block.placement.nbytes for block in kept)
        left = {block.number for block in kept}
        for block in before:
            if block.number not in left:
                block.stays = False
                self._held.free_if_unused(block)
