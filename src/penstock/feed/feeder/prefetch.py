"""How many blocks a feed keeps ready for a trainer."""

from __future__ import annotations

from math import ceil

from penstock.feed.feeder.subscriber import Subscriber
from penstock.feed.settings import MOST_BLOCKS
from penstock.memory.room import aligned

_READY_BYTES = 8 << 20
"""Where batches are smaller than half of this, more than two are kept ready: handing each over takes its time."""


def blocks_ready(
    member: Subscriber, rows: int, nbytes: int, window_bytes: int, batches: int | None, prefetch: int | None
) -> int:
    """Return how many blocks of this size are kept ready for a trainer.

    Args:
        member: The trainer.
        rows: Rows of a block.
        nbytes: Bytes of a block.
        window_bytes: Size of the ring.
        batches: Blocks in a cycle; None while unknown.
        prefetch: Batches to keep ready, if the feed's settings say.
    """
    blocks_per_batch = ceil((member.batch_rows or rows) * member.world / (rows * member.part))
    if batches is not None:
        blocks_per_batch = min(blocks_per_batch, batches)
    if member.part < 1:
        in_half_a_window = min(window_bytes // aligned(nbytes), MOST_BLOCKS) // 4
        blocks_per_batch = max(1, min(blocks_per_batch, in_half_a_window))
    if prefetch is not None:
        return prefetch * blocks_per_batch
    small = _READY_BYTES // aligned(nbytes)
    return max(2 * blocks_per_batch, small if batches is None else min(small, batches))
