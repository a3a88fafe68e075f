"""The blocks in the ring and the members of the feed that hold them: a block's room is freed when nobody does."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from penstock.contracts import Cursor, Known
from penstock.feed.named_rows import decode_ids, decode_kept
from penstock.memory.room import Room
from penstock.memory.slots import Placement
from penstock.subsets.selection import Bitmap

_BEGINNING = Cursor(0, 0)


@dataclass
class PublishedBlock:
    """A block in the ring, and which members still need it."""

    at: Cursor  # its first sample
    rows: int
    offset: int  # where it lies in the ring
    placement: Placement
    ids: bytes = b""  # numbers of its samples in the data set, as a message has them
    kept: bytes = b""  # which of its rows it has, as a message has it
    number: int = -1  # its number in the order of publishing, from then on
    published_ns: int = 0  # when that was, by the monotonic clock
    union: Bitmap | None = None  # what was loaded of it; None for all
    closes: bool = False  # whether a cycle of unknown length has ended with it
    stays: bool = False
    """Whether it stays in the ring for those who may come, though nobody holds it (``Beginning``)."""
    holders: dict[int, int] = field(default_factory=dict[int, int])
    """For each member, how many times it was sent the block and has not released it."""

    def rows_for(self, selected: Bitmap | None) -> int:
        """Return how many of its rows a trainer of these samples takes."""
        if selected is None:
            return self.rows
        rows = len(decode_kept(self.kept)) if self.kept else self.rows
        return int(selected.holds(decode_ids(self.ids, rows)).sum())


TO_COME = -2
"""The member that stands for trainers which are to come from another feed."""


@dataclass
class FeedMember:
    """One trainer of a feed."""

    id: int
    rank: int = 0
    world: int = 1
    group: str = ""
    batch_rows: int | None = None  # rows of its batch; None for those of a block
    epoch: int = 0
    next: Cursor | None = None  # the first sample that it has not been sent, once it reads
    end: Cursor | None = None  # where its last epoch ends; None for a feed without end
    epoch_start: Cursor | None = None  # where its epoch began, once it reads
    serial: int = 0  # serial of its newest start; 0 before the first
    sent: int = 0  # how many blocks it has been sent, which numbers them in the order of sending
    read: int = 0  # it has read the blocks before this number
    unread: int = 0  # how many of ``held`` it has not read
    held: dict[int, PublishedBlock] = field(default_factory=dict[int, PublishedBlock])
    """Blocks that it has not released, by that number. A block may be there twice: it is sent again after a new
    start, while views of it live."""
    held_bytes: int = 0
    held_rows: int = 0
    pending: bool = False  # whether it has asked to start, and waits for the other ranks of its group
    resting: bool = False  # whether it reads no more, and only holds blocks whose views live
    not_before: Cursor = _BEGINNING  # where its epoch begins at the earliest, while it waits
    known: Known | None = None  # what it brought of the joints of an epoch that began under another feeder
    selected: Bitmap | None = None  # the samples that it takes; None for all
    part: float = 1.0  # what part of all samples these are
    taken: int = 0  # rows taken, of those that it has released
    wait_s: float = 0.0  # time for which it has waited for blocks, as it reports

    @property
    def behind(self) -> Cursor:
        """The first sample that it has not released."""
        for block in self.held.values():
            return block.at
        return self.next or _BEGINNING

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
    def finished(self) -> bool:
        return self.next is not None and self.end is not None and self.next >= self.end


class HeldBlocks:
    """The blocks in a ring, as its members hold them."""

    def __init__(self, room: Room, samples: int | None) -> None:
        self.by_number: dict[int, PublishedBlock] = {}  # the blocks, in the order in which they were published
        self._room = room  # the ring's bytes
        self._samples = samples  # samples in a cycle; None when unknown
        self._number = 0

    def add(self, block: PublishedBlock) -> None:
        """Add a block that nobody holds yet. Give it to a member, or free it."""
        block.number = self._number
        self._number += 1
        self.by_number[block.number] = block

    def end(self, block: PublishedBlock) -> Cursor:
        """Return the position after a block."""
        return Cursor(block.at.cycle + 1, 0) if block.closes else block.at.after(block.rows, self._samples)

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

    def give(self, member: FeedMember, block: PublishedBlock) -> None:
        """Let a member hold a block that is sent to it, once more if it holds it already."""
        if member.id not in block.holders:
            member.held_bytes += block.placement.nbytes
            member.held_rows += block.rows
        block.holders[member.id] = block.holders.get(member.id, 0) + 1
        member.held[member.sent] = block
        member.sent += 1
        member.unread += 1

    def release(self, member: FeedMember, ordinal: int) -> None:
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


_STAYS_NS = 20 * 10**9
_WINDOW_SHARE = 4
"""They take at most this part (1/4) of the window, and of the blocks that may be on their way."""


class Beginning:
    """Keeps the blocks since the last young epoch start, while there is room: late trainers begin there."""

    def __init__(self, held: HeldBlocks, window_bytes: int, most_blocks: int) -> None:
        self._held = held  # the blocks in the ring
        self._most_bytes = window_bytes // _WINDOW_SHARE
        self._most_blocks = most_blocks // _WINDOW_SHARE  # of those that may be on their way
        self._staying: list[PublishedBlock] = []  # without a gap, up to the newest block
        self._bytes = 0
        self._begins: list[tuple[int, int]] = []  # blocks with which parts begin, by number, and until when

    def begin(self, blocks: list[PublishedBlock]) -> None:
        """Let these stay, the newest of the ring: a part begins with the first of them."""
        first = blocks[0]
        if self._staying and first.number < self._staying[0].number:
            self._staying, self._bytes = [], 0  # all of them are among these
        elif self._staying and not self._follows(first):
            self.let_go()
        known = self._staying[-1].number if self._staying else -1
        for block in blocks:
            if block.number > known:
                self._add(block)
        if (beginning := (first.number, first.published_ns + _STAYS_NS)) not in self._begins:
            insort(self._begins, beginning)
        self.expire(first.published_ns)

    def add(self, block: PublishedBlock) -> None:
        """Let a block that was just published stay, if all from a beginning on do."""
        if self._staying and self._follows(block):
            self._add(block)
        else:
            self.let_go()
        self.expire(block.published_ns)

    def expire(self, now_ns: int) -> None:
        """Let go what has stayed for long enough, or is too much."""
        while self._begins and (
            now_ns > self._begins[0][1] or self._bytes > self._most_bytes or len(self._staying) > self._most_blocks
        ):
            del self._begins[0]
            self._let_go_before(self._begins[0][0] if self._begins else None)

    @property
    def until_ns(self) -> int | None:
        """Until when the oldest stay, by the monotonic clock; None if there are none."""
        return self._begins[0][1] if self._begins else None

    def let_go(self) -> bool:
        """Let them go; return whether there were any."""
        any_stayed = bool(self._staying)
        self._begins.clear()
        self._let_go_before(None)
        return any_stayed

    def _follows(self, block: PublishedBlock) -> bool:
        """Whether a block stays already, or comes next."""
        return block.stays or self._held.end(self._staying[-1]) == block.at

    def _add(self, block: PublishedBlock) -> None:
        block.stays = True  # first: if Ctrl-C comes here, it is not freed twice
        self._staying.append(block)
        self._bytes += block.placement.nbytes

    def _let_go_before(self, number: int | None) -> None:
        while self._staying and (number is None or self._staying[0].number < number):
            block = self._staying.pop(0)
            self._bytes -= block.placement.nbytes
            block.stays = False
            self._held.free_if_unused(block)
