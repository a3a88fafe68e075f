"""The blocks from where parts of cycles begin, kept a while for trainers that come within seconds."""

from __future__ import annotations

from bisect import insort

from penstock.feed.feeder.held_blocks import HeldBlocks
from penstock.feed.feeder.subscriber import PublishedBlock

_STAYS_NS = 20 * 10**9
_WINDOW_SHARE = 4
"""They take at most one part in so many of the window, and of the blocks that may be on their way."""


class Beginning:
    """Keeps blocks in the ring as a trainer would: all from the oldest beginning on that is young, and fits.

    Args:
        held: The blocks in the ring.
        window_bytes: Size of the ring.
        most_blocks: Most blocks that may be on their way.
    """

    def __init__(self, held: HeldBlocks, window_bytes: int, most_blocks: int) -> None:
        self._held = held
        self._most_bytes = window_bytes // _WINDOW_SHARE
        self._most_blocks = most_blocks // _WINDOW_SHARE
        self._kept: list[PublishedBlock] = []  # without a gap, up to the newest block
        self._bytes = 0
        self._begins: list[tuple[int, int]] = []  # blocks with which parts begin, by number, and until when

    def begin(self, blocks: list[PublishedBlock]) -> None:
        """Keep these, the newest of the ring: a part begins with the first of them."""
        first = blocks[0]
        if self._kept and first.number < self._kept[0].number:
            self._kept, self._bytes = [], 0  # all of them are among these
        elif self._kept and not self._follows(first):
            self.let_go()
        known = self._kept[-1].number if self._kept else -1
        for block in blocks:
            if block.number > known:
                self._keep(block)
        if (beginning := (first.number, first.published_ns + _STAYS_NS)) not in self._begins:
            insort(self._begins, beginning)
        self.expire(first.published_ns)

    def add(self, block: PublishedBlock) -> None:
        """Keep a block that was just published, if all from a beginning on are kept."""
        if self._kept and self._follows(block):
            self._keep(block)
        else:
            self.let_go()
        self.expire(block.published_ns)

    def expire(self, now_ns: int) -> None:
        """Let go what has stayed for long enough, or is too much."""
        while self._begins and (
            now_ns > self._begins[0][1] or self._bytes > self._most_bytes or len(self._kept) > self._most_blocks
        ):
            del self._begins[0]
            self._let_go_before(self._begins[0][0] if self._begins else None)

    @property
    def until_ns(self) -> int | None:
        """Until when the oldest stay, by the monotonic clock; None if there are none."""
        return self._begins[0][1] if self._begins else None

    def let_go(self) -> bool:
        """Let them go; return whether there were any."""
        any_kept = bool(self._kept)
        self._begins.clear()
        self._let_go_before(None)
        return any_kept

    def _follows(self, block: PublishedBlock) -> bool:
        """Whether a block is kept, or comes next."""
        return block.stays or self._held.end(self._kept[-1]) == block.at

    def _keep(self, block: PublishedBlock) -> None:
        block.stays = True  # first: if Ctrl-C comes here, it is not freed twice
        self._kept.append(block)
        self._bytes += block.placement.nbytes

    def _let_go_before(self, number: int | None) -> None:
        while self._kept and (number is None or self._kept[0].number < number):
            block = self._kept.pop(0)
            self._bytes -= block.placement.nbytes
            block.stays = False
            self._held.free_if_unused(block)
