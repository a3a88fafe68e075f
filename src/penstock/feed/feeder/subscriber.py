"""One trainer of a feed, and one block that trainers hold, as ``FeedState`` keeps them."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.contracts import Cursor, Known
from penstock.feed.named_rows import decode_ids, decode_kept
from penstock.memory.slots import Placement
from penstock.subsets.selection import Bitmap

_BEGINNING = Cursor(0, 0)


@dataclass
class PublishedBlock:
    """A block in the ring, and which members still need it.

    Attributes:
        at: Its first sample.
        offset: Where it lies in the ring.
        published_ns: When, by the monotonic clock.
        ids: Numbers of its samples in the data set, as a message has them.
        kept: Which of its rows it has, as a message says it.
        union: What was loaded of it; None for all.
        stays: Whether it stays in the ring for those who may come, though nobody holds it (``Beginning``).
        holders: For each member, how many times it was sent the block and has not released it.
    """

    number: int
    at: Cursor
    rows: int
    offset: int
    placement: Placement
    published_ns: int
    ids: bytes = b""
    kept: bytes = b""
    union: Bitmap | None = None
    stays: bool = False
    holders: dict[int, int] = field(default_factory=dict[int, int])

    def rows_for(self, selected: Bitmap | None) -> int:
        """Count its rows that a trainer of these samples takes."""
        if selected is None:
            return self.rows
        rows = len(decode_kept(self.kept)) if self.kept else self.rows
        return int(selected.holds(decode_ids(self.ids, rows)).sum())


@dataclass
class Subscriber:
    """One trainer of a feed.

    Attributes:
        next: The first sample that it has not been sent, once it reads.
        end: Where its last epoch ends; None for a feed without end.
        epoch_start: Where its epoch began, once it reads.
        serial: Serial of its newest start; 0 before the first.
        sent: How many blocks it has been sent, which numbers them in the order of sending.
        batch_rows: Rows of its batch; None for those of a block.
        read: It has read the blocks before this number.
        unread: How many of ``held`` it has not read.
        held: Blocks that it has not released, by that number. A block may be there twice: it
            is sent again after a new start, while views of it live.
        pending: Whether it has asked to start, and waits for the other ranks of its group.
        selected: The samples that it takes; None for all.
        part: What part of all samples these are.
        taken: Of the rows that it has released, those that it takes.
        wait_s: Time for which it has waited for blocks, as it says.
        not_before: Where its epoch begins at the earliest, while it waits.
        known: What it brought of the joints of an epoch that began under another feeder.
        resting: Whether it reads no more, and only holds blocks of which views live.
    """

    id: int
    rank: int = 0
    world: int = 1
    group: str = ""
    batch_rows: int | None = None
    epoch: int = 0
    next: Cursor | None = None
    end: Cursor | None = None
    epoch_start: Cursor | None = None
    serial: int = 0
    sent: int = 0
    read: int = 0
    unread: int = 0
    held: dict[int, PublishedBlock] = field(default_factory=dict[int, PublishedBlock])
    held_bytes: int = 0
    held_rows: int = 0
    pending: bool = False
    resting: bool = False
    not_before: Cursor = _BEGINNING
    known: Known | None = None
    selected: Bitmap | None = None
    part: float = 1.0
    taken: int = 0
    wait_s: float = 0.0

    @property
    def digests(self) -> frozenset[str]:
        return frozenset() if self.selected is None else self.selected.digests

    @property
    def reads(self) -> bool:
        return self.next is not None and not self.finished

    @property
    def state(self) -> str:
        if self.finished:
            return "finished"
        if self.reads:
            return "reading"
        return "waiting" if self.pending else "attached"

    @property
    def waits_for(self) -> str:
        """What a trainer that has yet to begin waits for."""
        if self.next is None:
            return "the other ranks"
        cycle, sample = self.next
        return f"sample {sample:,} of cycle {cycle}" if sample else f"cycle {cycle}"

    @property
    def finished(self) -> bool:
        return self.next is not None and self.end is not None and self.next >= self.end
