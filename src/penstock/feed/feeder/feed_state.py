"""Who reads a feed, from where, and which blocks they still need: the state of a feed, without its bytes.

Nothing here touches a socket, a clock or memory, so that property tests can
drive it through any sequence of joins, releases and deaths.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.contracts import Cursor, Ids, Known
from penstock.errors import ProtocolError
from penstock.feed.feeder.blocks import TO_COME, Beginning, FeedMember, HeldBlocks, PublishedBlock
from penstock.feed.feeder.joints import FeedJoints, PlannedBlocks, covers, is_far_behind, place_for
from penstock.feed.feeder.pace import blocks_ready
from penstock.feed.settings import MOST_BLOCKS
from penstock.memory.room import Room, aligned
from penstock.sources.streams.bounds import StreamBounds
from penstock.subsets.selection import Mask


@dataclass(eq=False)
class FeedState:
    """The members of a feed and the blocks they hold."""

    room: Room  # the ring's bytes
    samples: int | None  # samples in a cycle; None when unknown
    segment_starts: tuple[int, ...]  # where segments begin
    epochs: int | None  # epochs that each member gets; None for no end
    batches: int | None = None  # blocks in a cycle; None when unknown, until the first has ended
    prefetch: int | None = None  # batches to have ready for the fastest member; see ``Settings``
    anywhere: bool = False
    """Whether an epoch may begin at any block; of a source of unknown length, until a cycle has ended."""
    expect: int = 1
    """Members, the ranks of a run counted once, that must have begun to read before anything is needed."""
    joints: FeedJoints | None = None  # which places are joints; None where there can be none
    bounds: StreamBounds | None = None  # where the cycles of a stream begin; None of other sources
    block_rows: int = 1  # rows of a full block
    across: bool = False
    """Whether ranks of a run may read other feeds, on other machines: its epochs are cycles then."""

    def __post_init__(self) -> None:
        self.members: dict[int, FeedMember] = {}
        self.position = self.furthest = Cursor(0, 0)
        """Where the next block begins, unless somebody needs another; the end of the furthest ever published."""
        self.gathers = self.expect > 1
        """Whether it waits for those expected. It no longer does once one has left, or one was there before: it
        has begun elsewhere in the feed."""
        self.planned = PlannedBlocks()
        self.held = HeldBlocks(self.room, self.samples)
        self.beginning = Beginning(self.held, self.room.capacity_bytes, MOST_BLOCKS)
        """The blocks that stay for newcomers, for some seconds."""
        self.taken = 0  # samples that members took of the blocks that they have released, counted for each of them
        self._in_cycle = 0  # blocks that were published of the present cycle
        self._served = False
        self.block_s = 0.0  # that the source takes for a block; 0 while unknown

    @property
    def blocks(self) -> dict[int, PublishedBlock]:
        """The blocks that somebody holds, by number, in the order in which they were published."""
        return self.held.by_number

    def join(self, member: FeedMember) -> None:
        self.members[member.id] = member

    def prepare(self, at: Cursor, epoch_start: Cursor, known: Known) -> None:
        """Read on from a position of an epoch for members that are to come, until half of the window is full."""
        if self.bounds is None and (self.joints is None or self.joints.admit(at, epoch_start, known, [])):
            self.members[TO_COME] = FeedMember(TO_COME, next=at, epoch_start=epoch_start)

    def end_preparing(self) -> bool:
        """Read for those who are there only; return whether it read for others."""
        if TO_COME not in self.members:
            return False
        self.leave(TO_COME)
        if self.joints is not None:
            self.joints.forget()
        return True

    def leave(self, id: int) -> None:
        """Remove a member that is gone, and release what it held."""
        self.rest(id, [])
        del self.members[id]

    def was_sent(self, id: int, ordinals: list[int]) -> bool:
        """Whether a member was sent each of these blocks; it may have released them since."""
        return all(ordinal < self.members[id].sent for ordinal in ordinals)

    def release(self, id: int, ordinals: list[int]) -> bool:
        """Release a member's blocks; twice is harmless. False if it was never sent one of them."""
        if not self.was_sent(id, ordinals):
            return False
        member = self.members[id]
        for ordinal in ordinals:
            if ordinal in member.held:
                rows = member.held[ordinal].rows_for(member.selected)
                member.taken += rows
                self.taken += rows
                self.held.release(member, ordinal)
        return True

    def has_read(self, id: int, before: int) -> bool:
        """Note that a member waits, and which blocks it has read. False if it was never sent one of them."""
        member = self.members[id]
        if before > member.sent:
            return False
        member.read = max(member.read, before)
        member.unread = sum(ordinal >= member.read for ordinal in member.held)
        return True

    def rest(self, id: int, viewed: list[int]) -> None:
        """Let a member read no more, and release all its blocks but ``viewed``."""
        member = self.members[id]
        self.gathers = self.gathers and member.next is None and not member.pending
        member.next, member.pending, member.resting = None, False, True
        for ordinal in member.held.keys() - set(viewed):
            self.held.release(member, ordinal)
        if not self.attended:
            self.beginning.let_go()

    def start(
        self,
        id: int,
        at: Cursor | None,
        epoch: int,
        epoch_start: Cursor,
        serial: int = 0,
        known: Known = Known(),  # noqa: B008 - it is immutable
        *,
        leaves: bool = False,
    ) -> list[FeedMember] | None:
        """Begin to read for a member; return the members that start now, with ``next`` set.

        None if it must read the rest of its epoch elsewhere: that epoch's joints are not those of this
        feed, or it ``leaves`` a feed where it would wait for others to read cycles.

        Without a position it begins near at hand, and not before ``epoch_start``: where others have begun, if that
        is still in the ring; else at the newest block, or the oldest that was loaded for it, which becomes a
        joint; in a feed without joints, at the next segment; and, of blocks loaded in part, the first whose rows
        it will find. Ranks of one group begin an epoch together, or where others of them have begun it, under a
        feeder that died or before this rank was interrupted.
        """
        member = self.members[id]
        member.pending, member.epoch, member.next, member.serial = at is None, epoch, None, serial
        member.not_before = epoch_start
        if at is None and self.across and member.world > 1:
            at = epoch_start = Cursor(epoch, 0)
        if at is not None:
            if (to_come := self.members.get(TO_COME)) is not None and to_come.next and at > to_come.next:
                self.end_preparing()  # they have read on meanwhile
            if leaves and is_far_behind(self, at):
                return None
            if self.joints and not self.joints.admit(at, epoch_start, known, self.began({id})):
                return None
            if self.bounds and (why := self.bounds.admit(at, known)):
                raise ProtocolError(why)
            self.gathers = False
            self._begin(member, at, epoch, epoch_start)
            member.known = known if at != epoch_start else None
            return [member, *self._follow(member, epoch_start)]
        ranks = [m for m in self.members.values() if m is member or self._belong_together(m, member)]
        begun = next((m for m in ranks if m.next is not None and m.epoch == epoch), None)
        if begun is not None:
            assert begun.epoch_start is not None
            self._check_gives(begun, begun.epoch_start)
            self._begin(member, begun.epoch_start, epoch, begun.epoch_start)
            return [member]
        group = [m for m in ranks if m.pending]
        if len({m.rank for m in group}) < member.world:  # a rank may be there twice, before its death is heard
            return []
        start = place_for(self, group, max(each.not_before for each in group))
        for each in group:
            self._begin(each, start, each.epoch, start)
        here = [block for block in self.held.up_to(self.position) if block.at >= start]
        if here and here[0].at == start:
            self.beginning.begin(here)
        return group

    def _belong_together(self, one: FeedMember, other: FeedMember) -> bool:
        return one.world > 1 and (one.group, one.world, one.digests) == (other.group, other.world, other.digests)

    def _follow(self, member: FeedMember, start: Cursor) -> list[FeedMember]:
        """Start the ranks that wait for the epoch that this member of their group has begun; return them."""
        group = [
            m
            for m in self.members.values()
            if m.pending and m.epoch == member.epoch and self._belong_together(m, member)
        ]
        if group:
            self._check_gives(member, start)
        for each in group:
            self._begin(each, start, each.epoch, start)
        return group

    def _check_gives(self, member: FeedMember, start: Cursor) -> None:
        """Check that others can begin the epoch which a member began, perhaps under another feeder."""
        if self.joints and member.known and not self.joints.gives(start, member.known):
            raise ProtocolError(
                f"rank {member.rank} of its run goes on amid epoch {member.epoch}, whose beginning this feed has "
                "in another order by now: let all ranks go on from states of one moment, or begin the epoch anew"
            )

    def rank_taken(self, member: FeedMember) -> bool:
        """Whether a group that is still gathering has this rank already."""
        return any(
            self._belong_together(m, member) and m.rank == member.rank and m.next is None and not m.resting
            for m in self.members.values()
        )

    def begin_epoch(self, id: int, epoch: int, start: Cursor) -> None:
        """Record where a member's epoch began, and so where its last epoch ends."""
        member = self.members[id]
        if self.epochs is not None and epoch >= self.epochs and member.next and member.end:
            self._advance(member, max(member.next, member.end))  # a selection may end long before its cycle
            return
        if member.epoch_start != start:
            member.known = None
        member.epoch, member.epoch_start = epoch, start
        if self.epochs is not None:
            # An epoch is one cycle long; where the length is unknown, it ends with its cycle.
            member.end = Cursor(start.cycle + self.epochs - epoch, 0 if self.samples is None else start.sample)
        self._served |= member.finished

    def backlog(self, member: FeedMember) -> list[PublishedBlock | Cursor]:
        """Give a member the blocks in the ring from its ``next`` on, as held; return them, and ends of cycles."""
        taken: list[PublishedBlock | Cursor] = []
        for block in self.held.up_to(self.position):
            if member.next is None or self.held.end(block) <= member.next:
                continue
            if block.at > member.next or not (member.reads and covers(block.union, member.selected)):
                break
            if (end := block.at.after(block.rows, self.samples)) > member.next:
                self._give(member, block)
                taken.append(block)
            else:  # it stands between a cycle's last sample and its end
                self._advance(member, self.held.end(block))
            if block.closes:
                taken.append(end)
        return taken

    def needed(self) -> Cursor | None:
        """Return the first position that a member needs; None while nobody reads, or others are expected."""
        reading = (m.next for m in self.members.values() if m.reads and m.next is not None)
        return None if self.gathers else min(reading, default=None)

    def open(self, cycle: int) -> bool:
        """Note that the source is opened, and gives no more of what it has planned.

        Return whether the cycle is new, and has other joints than the one before.
        """
        self.planned.forget()
        return self.joints is not None and self.joints.open(cycle, self.began(set()))

    def known_since(self, member: FeedMember) -> Known | None:
        """Return what a member that reads must know of joints or cycles; None where nothing need be known."""
        if member.epoch_start is None:
            return None
        if self.bounds is not None:
            return self.bounds.known(self.bounds.since(member.epoch_start.cycle))
        return self.joints and self.joints.since(member.epoch_start.cycle, self.began(set()))

    def oldest_cycle(self, cycle: int) -> int:
        """Return the first cycle that a member's epoch or a block in the ring is of, or that one."""
        epochs = (m.epoch_start.cycle for m in self.members.values() if m.epoch_start and m.reads)
        return min([cycle, *epochs, *(block.at.cycle for block in self.blocks.values())])

    def began(self, but: set[int]) -> list[int]:
        """Return where in their cycles the epochs of the members that read began, but for some of these."""
        reading = (m for m in self.members.values() if m.id not in but and m.reads)
        return [m.epoch_start.sample for m in reading if m.epoch_start]

    def plan(self, at: Cursor, ids: Ids) -> Mask | None:
        """Note that the source plans a block of these samples now; return which it is to load, None for all."""
        end = at.after(len(ids), self.samples)
        readers = [m.selected for m in self.members.values() if m.reads and m.next is not None and m.next < end]
        return self.planned.plan(at, end, ids, readers)

    def has_enough(self, rows: int, nbytes: int) -> bool:
        """Whether each member that reads has as many such blocks to read as ``blocks_ready`` asks for.

        What a member has read and holds does not count, or it would wait for a block that never comes. One that
        waits for the feed to come to its place has nothing to read.
        """
        block = rows, nbytes, self.room.capacity_bytes, self.batches, self.prefetch, self.block_s
        return all(m.unread >= blocks_ready(m, *block) for m in self.members.values() if m.reads)

    def reserve(self, nbytes: int, offset: int | None = None) -> int | None:
        """Reserve room for a block; None while bytes are lacking, or too many blocks are on their way.

        ``offset`` is that of a block which lies in the ring already.
        """
        if len(self.blocks) >= MOST_BLOCKS and not (self._spares_some() and len(self.blocks) < MOST_BLOCKS):
            return None
        return self.reserve_ahead(nbytes) if offset is None else offset

    def reserve_ahead(self, nbytes: int) -> int | None:
        """Reserve room for a block to come; None while there is none."""
        room = self.room.reserve(nbytes)
        return self.room.reserve(nbytes) if room is None and self._spares_some() else room

    def publish(self, block: PublishedBlock) -> list[FeedMember]:
        """Record a block that has been written; return the members that get it."""
        at, loaded = block.at, self.planned.given(block.at)
        if block.kept:  # a worker's slot has room for a whole block
            block.placement = block.placement._replace(nbytes=aligned(block.placement.end))
            self.room.shrink(block.offset, block.placement.nbytes)
            block.union = loaded
        self.held.add(block)
        self._in_cycle = self._in_cycle + 1 if at.sample else 1
        end = self.held.end(block)
        readers = [
            m
            for m in self.members.values()
            if m.reads and m.next is not None and at <= m.next < end and covers(block.union, m.selected)
        ]
        for member in readers:
            self._give(member, block)
        self.position = end
        self.furthest = max(self.furthest, end)
        if not readers:
            self.held.free_if_unused(block)
        elif at.sample in self.segment_starts or at.sample in self.began(set()):
            self.beginning.begin([block])
        else:
            self.beginning.add(block)
        return readers

    def end_cycle(self, cycle: int, samples: int) -> list[FeedMember]:
        """End a cycle of unknown length after ``samples``; return the members that wait for more of it.

        A member that has meanwhile gone back into the cycle is not among them.
        """
        end = Cursor(cycle, samples)
        self.anywhere = False
        if self.bounds is None:  # cycles of a stream differ in length
            self.batches = self.batches or self._in_cycle
        self.position = Cursor(cycle + 1, 0)
        for block in self.held.up_to(end)[-1:]:
            block.closes = True
        waiting = [m for m in self.members.values() if m.reads and m.next and end <= m.next < self.position]
        for member in waiting:
            self._advance(member, self.position)
        return waiting

    @property
    def finished(self) -> bool:
        """Whether no member reads any more, and one has had all its epochs."""
        return self._served and all(m.resting or self._reads_its_last(m) for m in self.members.values())

    def _reads_its_last(self, member: FeedMember) -> bool:
        """Whether a member has been sent all, and has begun its last epoch: until then it may select anew."""
        return member.finished and self.epochs is not None and member.epoch >= self.epochs - 1

    @property
    def attended(self) -> bool:
        """Whether a member may still read."""
        return not all(m.resting for m in self.members.values())

    def largest_holder(self) -> FeedMember | None:
        """The member that holds the most bytes of the window; among equals, the one furthest behind."""
        return max(
            (m for m in self.members.values() if m.held),
            key=lambda m: (m.held_bytes, -next(iter(m.held.values())).number),
            default=None,
        )

    def only_holders(self, ids: set[int]) -> bool:
        """Whether no block can go before these members release one."""
        return bool(self.blocks) and all(ids & block.holders.keys() for block in self.blocks.values())

    @property
    def idle(self) -> str:
        """Why nothing is needed, in the words of ``FeederStatistics.waits_for``; empty if something is."""
        if self.needed() is not None:
            return ""
        return "expected trainers" if self.gathers and self.gathered else "nobody reads"

    @property
    def gathered(self) -> int:
        """How many members have begun to read; the ranks of a run are one."""
        return len({(m.group, m.world) if m.world > 1 else m.id for m in self.members.values() if m.reads})

    def _spares_some(self) -> bool:
        """Give up all that is kept for those who may come; return whether there was any."""
        return any([self.beginning.let_go(), self.end_preparing()])

    def _begin(self, member: FeedMember, at: Cursor, epoch: int, epoch_start: Cursor) -> None:
        member.next = at
        member.pending = False
        self.begin_epoch(member.id, epoch, epoch_start)
        self.gathers = self.gathers and self.gathered < self.expect

    def _give(self, member: FeedMember, block: PublishedBlock) -> None:
        self.held.give(member, block)
        self._advance(member, self.held.end(block))

    def _advance(self, member: FeedMember, to: Cursor) -> None:
        member.next = to
        self._served |= member.finished
