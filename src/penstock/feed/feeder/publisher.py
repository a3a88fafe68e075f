"""The side of a feeder on which its source runs: waits for need and for room, and publishes blocks."""

from __future__ import annotations

import enum
import time

from penstock.contracts import NO_JOINTS, Cursor, Ids, Joints
from penstock.feed import wire
from penstock.feed.feeder.blocks import FeedMember, PublishedBlock
from penstock.feed.feeder.feed_state import FeedState
from penstock.feed.feeder.server import Server
from penstock.subsets.selection import Mask


class NotNeeded(enum.Enum):
    """Why there is no room for a block."""

    SKIP = "nobody needs it, but somebody needs a later one"
    REOPEN = "somebody needs another position, or the feed ends"


class Publisher:
    """Publishes blocks to a feed's trainers, and waits while they need none, or hold all room.

    Only the thread that runs the source calls it.
    """

    def __init__(self, server: Server, state: FeedState, feed: str, stall_timeout: float | None) -> None:
        self._server = server  # knows the trainers; its lock guards everything
        self._lock = server.lock
        self._changed = server.changed
        self._pace = server.pace
        self._state = state  # who reads what
        self._feed = feed  # name of the feed
        self.stall_timeout = stall_timeout
        """Seconds for which a trainer may hold the feed back; None for no limit."""

    def await_need(self) -> Cursor | None:
        """Wait until somebody needs a position; None once the feed is over."""
        with self._lock:
            while not self._server.is_over():
                if (needed := self._state.needed()) is not None:
                    self._pace.moving(time.monotonic())
                    return needed
                self._idle()
            return None

    def reserve(self, at: Cursor, rows: int, nbytes: int, offset: int | None) -> int | NotNeeded:
        """Wait until a block is needed and has room; return where that begins, or why not.

        ``offset`` is that of a block which lies in the ring already.
        """
        with self._lock:
            while not self._server.is_over():
                needed = self._state.needed()
                if needed is None:
                    self._idle()
                elif needed < at or needed.cycle > at.cycle:
                    break
                elif needed.sample >= at.sample + rows:
                    return NotNeeded.SKIP
                elif self._state.has_enough(rows, nbytes):
                    self._idle()
                elif (room := self._state.reserve(nbytes, offset)) is not None:
                    self._pace.moving(time.monotonic())
                    return room
                else:
                    self._wait_for_room()
            return NotNeeded.REOPEN

    def reserve_ahead(self, nbytes: int) -> int | None:
        """Reserve room for a block to come; None while there is none."""
        with self._lock:
            return self._state.reserve_ahead(nbytes)

    def release(self, offset: int) -> None:
        """Give back room for which no block has come."""
        with self._lock:
            self._state.room.release(offset)
            self._changed.notify_all()

    def publish(self, block: PublishedBlock) -> None:
        """Announce a written block to every trainer that needs it."""
        with self._lock:
            block.published_ns = time.monotonic_ns()
            self._server.announce(block, self._state.publish(block))

    def open(self, cycle: int) -> Joints:
        """Note that the source is opened; return the joints in force, which are sent first to those who read."""
        with self._lock:
            if self._state.open(cycle):
                self._server.send_joints()
            return NO_JOINTS if self._state.joints is None else self._state.joints.joints

    def wanted(self, cycle: int, sample: int, ids: Ids) -> Mask | None:
        """Return which rows of a block are wanted, None for all: the source plans to load it."""
        with self._lock:
            return self._state.plan(Cursor(cycle, sample), ids)

    def end_cycle(self, cycle: int, samples: int) -> None:
        """End a cycle of unknown length, and announce that to the trainers that wait for more of it."""
        with self._lock:
            self._server.send(self._state.end_cycle(cycle, samples), wire.CycleEnd(cycle, samples))

    def _idle(self) -> None:
        self._pace.idles(time.monotonic())
        self._changed.wait()

    def _wait_for_room(self) -> None:
        now = time.monotonic()
        largest_holder = self._state.largest_holder()
        assert largest_holder is not None, "a window that nobody holds has room"
        self._pace.blocked(largest_holder.id, now)
        self._report_if_stuck(largest_holder)
        limit = self.stall_timeout
        held_back_s = self._pace.current_s(now)
        alone = not any(m.reads and m is not largest_holder for m in self._state.members.values())
        if limit is None or alone:
            self._changed.wait()
        elif held_back_s > limit:
            self.evict(largest_holder, held_back_s)
        else:
            self._changed.wait(limit - held_back_s + 0.001)

    def _report_if_stuck(self, member: FeedMember) -> None:
        """Send ``Stuck`` to a waiting trainer if only its own views leave no room for its block."""
        pid = self._server.sessions[member.id].peer.pid
        its = [each for each in self._server.sessions.values() if each.peer.pid == pid]
        left = [each.member for each in its if each.member.resting]  # with another selection
        starved = next((each for each in its if each.starved is not None), None)
        if starved is None or starved.starved is None:
            return
        holders = {member.id: member for member in (starved.member, *left)}
        if not self._state.only_holders(set(holders)):
            return
        held_bytes = sum(each.held_bytes for each in holders.values())
        message = (
            f"this trainer (pid {pid}) waits for a batch, and its own views (borrow=True) hold "
            f"{held_bytes:,} of the {self._state.room.capacity_bytes:,} bytes of the window of feed "
            f"{self._feed!r}, so that there is no room for it. Let views go before you go on "
            "(list(loader) holds all), copy what you need, leave borrow out, or give the feed a larger window"
        )
        self._server.send([starved.member], wire.Stuck(starved.starved, message))
        starved.starved = None

    def evict(self, member: FeedMember, held_back_s: float) -> None:
        """Go on without a trainer that held the feed back for so long."""
        peer = self._server.sessions[member.id].peer
        message = (
            f"this trainer (pid {peer.pid}) held {member.held_bytes:,} of {self._state.room.capacity_bytes:,} "
            f"bytes of feed {self._feed!r} and released none of them for {held_back_s:.1f} s, longer than "
            f"the feed's stall_timeout of {self.stall_timeout} s; the others went on without it. Raise "
            "stall_timeout or window, or load its last state_dict() into a new Loader"
        )
        # Sent before any of its bytes are overwritten: a trainer that has copied, and
        # then finds no eviction, has copied valid bytes.
        self._server.connections.dismiss(peer, wire.encode(wire.Evicted(message)))
        self._server.connections.wake()  # it may have been the last, and the feed may have to end
