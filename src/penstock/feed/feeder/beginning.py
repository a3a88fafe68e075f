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

    def add(self, block: PublishedBlock, *, begins: bool) -> None:
        """Keep the newest block; if a part begins with it, those before it go."""
        if begins:
            self._until_ns = block.published_ns + _STAYS_NS
            self._let_go(but=block)
        elif not self._kept or self._held.end(self._kept[-1]) != block.at:
            self.let_go()
            return
        block.stays = True  # first: if Ctrl-C comes here, it is not freed twice
        self._kept.append(block)
        self._bytes += block.placement.nbytes
        if self._bytes > self._most_bytes or len(self._kept) > self._most_blocks:
            self.let_go()
        self.expire(block.published_ns)

    def expire(self, now_ns: int) -> None:
        """Let them go if they have stayed for long enough."""
        if now_ns > self._until_ns:
            self.let_go()

    @property
    def until_s(self) -> float | None:
        """Until when they stay, by the monotonic clock; None if there are none."""
        return self._until_ns / 1e9 if self._kept else None

    def let_go(self) -> bool:
        """Let them go; return whether there were any."""
        return self._let_go(but=None)

    def _let_go(self, but: PublishedBlock | None) -> bool:
        any_kept = bool(self._kept)
        self._bytes = 0
        while self._kept:
            block = self._kept.pop()
            block.stays = False
            if block is not but:
                self._held.free_if_unused(block)
        return any_kept
