"""The feeder's half of the conversation: admits trainers, hears them, and tells them of blocks.

One thread serves the sockets; the thread that runs the source calls
``await_need``, ``reserve`` and ``publish``. One lock guards everything, and
nothing that is done under it waits for a peer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock._version import __version__
from penstock.contracts import NO_JOINTS, Cursor, Ids, Joints, WritableRing
from penstock.errors import PenstockError
from penstock.feed import wire
from penstock.feed.endpoint import Endpoint
from penstock.feed.feeder.admission import member_of, objection_to, objection_to_moving, objection_to_reading
from penstock.feed.feeder.blocks import FeedMember, PublishedBlock
from penstock.feed.feeder.connections import Connections, Peer
from penstock.feed.feeder.error_texts import evicted, stuck
from penstock.feed.feeder.feed_state import FeedState
from penstock.feed.feeder.pace import Pace, Patience
from penstock.feed.feeder.slot_pool import NotNeeded
from penstock.feed.feeder.trainer_statistics import trainer_statistics
from penstock.feed.feeder.witness import Witnesses
from penstock.feed.settings import Settings
from penstock.feed.statistics import FeederStatistics, TrainerStatistics
from penstock.memory.placement import EMPTY, Placement
from penstock.memory.unused_pages import UnusedPages
from penstock.subsets.bitmap import Mask


class Server:
    """Serves one feed's trainers.

    Args:
        endpoint: The feed's files; the caller holds its lock.
        state: Who reads what; guarded by ``lock`` from now on.
        welcome: What each trainer is told.
        rings: The rings that the welcome names; a trainer gets their descriptors.
        unused_pages: Gives back the pages of the last of them.
        statistics: Returns the feed's statistics.
        selects: Whether the source can load some samples only.
        witnesses: What the feed's loader makes of a few samples.

    Attributes:
        lock: Guards everything. It is entered by ``with`` itself: a Condition's is entered in Python, and stays
            locked for ever if Ctrl-C comes there.
        changed: Notified when anything that a waiting thread may want has changed.
        closing: Why the feed ends, once it does; empty when it has simply been read to its end.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        state: FeedState,
        welcome: wire.Welcome,
        rings: Sequence[WritableRing],
        unused_pages: UnusedPages,
        statistics: Callable[[], FeederStatistics],
        *,
        selects: bool,
        witnesses: Witnesses,
    ) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.pace = Pace()
        self.closing: str | None = None
        self._state = state
        self._settings: Settings = welcome.settings
        self._welcome = welcome
        self._rings = rings
        self._unused_pages = unused_pages
        self._statistics = statistics
        self._selects = selects
        self._witnesses = witnesses
        self._compares: set[int] = set()  # peers that have asked for a witness
        self._failed: wire.Failed | None = None
        self._serves = True
        self._crash: BaseException | None = None
        self._trainers: dict[int, tuple[Peer, wire.Hello]] = {}  # by peer id, which is the member's
        self._starved: dict[int, int] = {}  # by member, serial of its last word that it waits while it keeps views
        self._patience = Patience(self._settings.linger, time.monotonic())
        self._connections = Connections(
            endpoint.listen(), self.lock, admit=self._connected, hear=self._hear, gone=self._forget
        )
        self._thread = threading.Thread(target=self._serve, name="penstock-server", daemon=True)

    def start(self) -> None:
        """Serve, until it is closed."""
        self._thread.start()

    # For the thread that runs the source.

    def await_need(self) -> Cursor | None:
        """Wait until somebody needs a position; None once the feed is over."""
        with self.lock:
            while not self._is_over():
                if (needed := self._state.needed()) is not None:
                    return needed
                self.changed.wait()
            return None

    def reserve(self, at: Cursor, rows: int, nbytes: int, offset: int | None) -> int | NotNeeded:
        """Wait until a block is needed and has room; return where that begins, or why not.

        ``offset`` is that of a block which lies in the ring already.
        """
        with self.lock:
            while not self._is_over():
                needed = self._state.needed()
                if needed is None:
                    self.changed.wait()
                elif needed < at or needed.cycle > at.cycle:
                    break
                elif needed.sample >= at.sample + rows:
                    return NotNeeded.SKIP
                elif self._state.has_enough(rows, nbytes):
                    self.pace.moving(time.monotonic())
                    self.changed.wait()
                elif (room := self._state.reserve(nbytes, offset)) is not None:
                    self.pace.moving(time.monotonic())
                    return room
                else:
                    self._wait_for_room()
            return NotNeeded.REOPEN

    def reserve_ahead(self, nbytes: int) -> int | None:
        """Reserve room for a block to come; None while there is none."""
        with self.lock:
            return self._state.reserve_ahead(nbytes)

    def release(self, offset: int) -> None:
        """Give back room for which no block has come."""
        with self.lock:
            self._state.room.release(offset)
            self.changed.notify_all()

    def publish(self, at: Cursor, rows: int, offset: int, placement: Placement, ids: bytes, kept: bytes) -> None:
        """Announce a written block to every trainer that needs it."""
        with self.lock:
            self._announce(*self._state.publish(at, rows, offset, placement, time.monotonic_ns(), ids, kept))

    def open(self, cycle: int) -> Joints:
        """Note that the source is opened; return the joints in force, which those who read are told first."""
        with self.lock:
            if self._state.open(cycle):
                self._send_joints()
            return NO_JOINTS if self._state.joints is None else self._state.joints.joints

    def wanted(self, cycle: int, sample: int, ids: Ids) -> Mask | None:
        """Say which rows of a block are wanted, None for all: the source plans to load it."""
        with self.lock:
            return self._state.plan(Cursor(cycle, sample), ids)

    def end_cycle(self, cycle: int, samples: int) -> None:
        """End a cycle of unknown length: tell the trainers that wait for more of it."""
        with self.lock:
            waiting = [self._trainers[member.id][0] for member in self._state.end_cycle(cycle, samples)]
            self._connections.send(waiting, wire.encode(wire.CycleEnd(cycle, samples)))

    def see(self, ids: Ids | None) -> None:
        """Have the samples of a published block witness, if a trainer wants that."""
        self._witnesses.see(ids, self._tell_witness)

    def _tell_witness(self, witness: wire.Witness) -> None:
        with self.lock:
            asked = [peer for id, (peer, _) in self._trainers.items() if id in self._compares]
            self._connections.send(asked, wire.encode(witness))

    def fail(self, kind: str, message: str, traceback_text: str, raised: str) -> None:
        """Tell every trainer, now and later, that the source failed."""
        with self.lock:
            texts = message[:8_000], traceback_text[-32_000:]  # at most 4 bytes a character
            self._failed = wire.Failed(kind, *texts, raised)
            self._connections.send([peer for peer, _ in self._trainers.values()], wire.encode(self._failed))

    def close(self, reason: str) -> None:
        """Say goodbye, wait until every live trainer has been sent it, and end the thread."""
        with self.lock:
            if self.closing is None:
                self._goodbye(reason)
        self._connections.wake()
        with suppress(RuntimeError):  # not started, or interrupted as it was
            self._thread.join()
        self._connections.close()

    def wait_until_ending(self) -> None:
        """Wait until the feed ends before it has been read to its end."""
        with self.lock:
            self.changed.wait_for(lambda: self.closing or not self._serves)

    def _is_over(self) -> bool:
        if self._crash is not None:
            raise self._crash
        return self.closing is not None or self._state.finished

    def _wait_for_room(self) -> None:
        now = time.monotonic()
        largest_holder = self._state.largest_holder()
        assert largest_holder is not None, "a window that nobody holds has room"
        self.pace.blocked(largest_holder.id, now)
        self._tell_if_stuck(largest_holder)
        limit = self._settings.stall_timeout
        held_back_s = self.pace.current_s(now)
        alone = not any(m.reads and m is not largest_holder for m in self._state.members.values())
        if limit is None or alone:
            self.changed.wait()
        elif held_back_s > limit:
            self._evict(largest_holder, held_back_s)
        else:
            self.changed.wait(limit - held_back_s + 0.001)

    def _tell_if_stuck(self, member: FeedMember) -> None:
        """Tell a waiting trainer if only its own views leave no room for its block."""
        peer, _ = self._trainers[member.id]
        its = [id for id, (each, _) in self._trainers.items() if each.pid == peer.pid]
        left = [id for id in its if self._state.members[id].resting]  # with another selection
        starved = next((id for id in its if id in self._starved), None)
        if starved is None or not self._state.only_holders({starved, *left}):
            return
        peer, serial = self._trainers[starved][0], self._starved.pop(starved)
        held_bytes = sum(self._state.members[id].held_bytes for id in (starved, *left))
        message = stuck(peer.pid, held_bytes, self._state.room.capacity_bytes, self._welcome.name)
        self._connections.send([peer], wire.encode(wire.Stuck(serial, message)))

    def _evict(self, member: FeedMember, held_back_s: float) -> None:
        peer, _ = self._trainers[member.id]
        window_bytes, limit_s = self._state.room.capacity_bytes, self._settings.stall_timeout
        message = evicted(peer.pid, member.held_bytes, window_bytes, self._welcome.name, held_back_s, limit_s)
        # Sent before any of its bytes are overwritten: a trainer that has copied, and
        # then finds no eviction, has copied valid bytes.
        self._connections.dismiss(peer, wire.encode(wire.Evicted(message)))
        self._connections.wake()  # it may have been the last, and the feed may have to end

    # The thread that serves the sockets.

    def _serve(self) -> None:
        try:
            while not self._has_closed():
                self._connections.poll_once(self._timeout_s())
                with self.lock:
                    now = time.monotonic()
                    self._state.beginning.expire(time.monotonic_ns())
                    self._unused_pages.give_back(now)
                    if self._patience.ends_gathering(now):
                        self._state.gathers = False
                        self.changed.notify_all()
        except BaseException as error:
            self._crash = error
        with self.lock:
            self._serves = False
            for peer in list(self._connections.peers.values()):
                self._connections.drop(peer)
            self.changed.notify_all()

    def _has_closed(self) -> bool:
        with self.lock:
            alone = not self._state.attended
            if self.closing is None and alone and self._patience.has_lingered(time.monotonic()):
                self._goodbye("had no trainer left")
            if self.closing is None:
                return False
            # Trainers that have yet to be told of their blocks are waited for.
            return self.closing != "" or self._connections.all_sent

    def _timeout_s(self) -> float | None:
        now = time.monotonic()
        with self.lock:  # the thread that fills the ring may evict a member meanwhile
            lingers = self._settings.linger is not None and not self._state.attended and self.closing is None
            stays_until_ns = self._state.beginning.until_ns
        stays_s = None if stays_until_ns is None else max(0.0, stays_until_ns / 1e9 - now)
        timeouts_s = stays_s, self._unused_pages.timeout_s(now), self._patience.timeout_s(now, lingers=lingers)
        return min((each for each in timeouts_s if each is not None), default=None)

    def _connected(self, peer: Peer) -> None:
        if peer.uid != os.getuid():
            self._reject(peer, f"you are uid {peer.uid}, the feed belongs to uid {os.getuid()}")

    def _hear(self, peer: Peer, packet: bytes) -> None:
        try:
            self._obey(peer, wire.decode_from_trainer(packet))
        except PenstockError as error:
            self._reject(peer, str(error))
        except OSError as error:  # no descriptor is left to open the ring for it
            self._reject(peer, f"the feeder cannot serve it: {error}")
        self.changed.notify_all()

    def _obey(self, peer: Peer, message: wire.FromTrainer) -> None:
        if isinstance(message, wire.StatisticsRequest):
            self._connections.send([peer], wire.encode(self._statistics()))
        elif isinstance(message, wire.FingerprintRequest):
            self._connections.send([peer], wire.encode(wire.MadeOf(self._welcome.fingerprint)))
        elif isinstance(message, wire.Stop):
            reason = f"was stopped by process {message.pid}"
            self._goodbye(reason)
            self._connections.dismiss(peer, wire.encode(wire.Bye(reason)))
        elif isinstance(message, wire.MoveTrainer):
            self._pass_on(peer, message)
        elif isinstance(message, wire.Hello):
            known = peer.id in self._trainers
            if objection := objection_to(message, self._welcome, known=known, selects=self._selects):
                self._reject(peer, objection)
            elif self.closing is not None:
                self._connections.drop(peer)
            else:
                self._welcome_in(peer, message)
        elif peer.id not in self._trainers:
            self._reject(peer, "a trainer says hello first")
        elif isinstance(message, wire.WitnessRequest):
            self._compares.add(peer.id)
            if witness := self._witnesses.want(message.number):
                self._connections.send([peer], wire.encode(witness))
        elif isinstance(message, wire.Release):
            self._state.members[peer.id].wait_s = message.waited_ms / 1e3
            if not self._state.release(peer.id, message.blocks):
                self._reject(peer, "it released a block that it was never sent")
            elif message.blocks and self.pace.culprit == peer.id:
                self.pace.moving(time.monotonic())
        elif isinstance(message, wire.Read):
            if not self._state.has_read(peer.id, message.before):
                self._reject(peer, "it has read a block that it was never sent")
        elif isinstance(message, wire.Starved):
            self._starved[peer.id] = message.serial
        elif isinstance(message, wire.Detach):
            if not self._state.was_sent(peer.id, message.keep):
                self._reject(peer, "it keeps a block that it was never sent")
                return
            self._state.rest(peer.id, message.keep)
            now = time.monotonic()
            self._patience.left(now)
            if self.pace.culprit == peer.id:
                self.pace.moving(now)
        elif objection := objection_to_reading(message, self._welcome, self._state, peer.id):
            self._reject(peer, objection)
        elif isinstance(message, wire.EpochBegun):
            self._state.begin_epoch(peer.id, message.epoch, Cursor(message.cycle, message.sample))
        else:
            self._start(peer, message)

    def _pass_on(self, peer: Peer, message: wire.MoveTrainer) -> None:
        """Tell a process's trainers to move, and the peer that they were told."""
        trainers = [each for each in self._trainers.values() if each[0].pid == message.pid]
        if objection := objection_to_moving(message, [hello for _, hello in trainers]):
            self._reject(peer, objection)
        else:
            packet = wire.encode(wire.Move(message.to))
            self._connections.send([*(trainer for trainer, _ in trainers), peer], packet)

    def _welcome_in(self, peer: Peer, hello: wire.Hello) -> None:
        member = member_of(peer, hello, self._welcome.samples)
        if self._state.rank_taken(member):
            self._reject(peer, f"rank {hello.rank} of {hello.world} has joined already")
            return
        peer.introduce()
        if hello.registers:
            self._unused_pages.keep()
        self._trainers[peer.id] = peer, hello
        self._state.join(member)
        fds: list[int] = []
        try:
            for ring in self._rings:
                fds.append(ring.open_for_readers())  # noqa: PERF401 - those that are open are closed if one cannot be
            self._connections.send([peer], wire.encode(self._welcome), fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _start(self, peer: Peer, message: wire.Start) -> None:
        if message.serial == self._state.members[peer.id].serial:
            return  # repeated by a trainer that was interrupted, and cannot know whether it had sent it
        at = None if message.cycle is None else Cursor(message.cycle, message.sample)
        epoch_start = Cursor(message.epoch_cycle, message.epoch_sample)
        asked = at, message.epoch, epoch_start, message.serial, message.known
        started = self._state.start(peer.id, *asked, leaves=message.leaves)
        if started is None:
            self._connections.send([peer], wire.encode(wire.Apart(message.serial)))
        if started:  # who reads must know of joints before they are used: a death may follow
            self._send_joints()
        for member in started or []:
            assert member.next is not None
            starting, _ = self._trainers[member.id]
            self._connections.send([starting], wire.encode(wire.Started(member.serial, *member.next)))
            for block in self._state.backlog(member):
                self._announce(block, [member])
        if self._state.gathers:
            self._patience.gathers(time.monotonic())
        if self._failed is not None:
            self._connections.send([peer], wire.encode(self._failed))

    # Both threads, under the lock.

    def _announce(self, block: PublishedBlock, readers: list[FeedMember]) -> None:
        layout, leaf_offsets, leaf_bytes, _ = block.placement
        packets: dict[bool, bytes] = {}
        for member in readers:
            peer, _ = self._trainers[member.id]
            known = peer.layout is layout or layout is EMPTY.layout
            if known not in packets:
                described = None if known else layout
                packets[known] = wire.encode(
                    wire.BlockAnnounced(
                        block.number,
                        *block.at,
                        block.rows,
                        block.offset,
                        leaf_offsets,
                        leaf_bytes,
                        block.published_ns,
                        described,
                        block.ids,
                        block.kept,
                    )
                )
            if not known:
                peer.layout = layout
            self._connections.send([peer], packets[known])

    def _send_joints(self) -> None:
        """Tell all who read of the joints."""
        for member in self._state.members.values():
            if member.next is not None and (known := self._state.known_since(member)) is not None:
                packet = wire.encode(wire.InForce(known))
                self._connections.send([self._trainers[member.id][0]], packet)

    def _goodbye(self, reason: str) -> None:
        packet = wire.encode(wire.Bye(reason))
        if reason:
            for peer, _ in list(self._trainers.values()):
                self._connections.dismiss(peer, packet)
        else:
            self._connections.send([peer for peer, _ in self._trainers.values()], packet)
        self.closing = reason  # now: who is interrupted before says goodbye again
        self.changed.notify_all()

    def _reject(self, peer: Peer, reason: str) -> None:
        self._connections.dismiss(peer, wire.encode(wire.Rejected(reason[:4000], __version__, wire.PROTOCOL)))

    def _forget(self, peer: Peer) -> None:
        """Free what a trainer held."""
        self._starved.pop(peer.id, None)
        self._compares.discard(peer.id)
        if self._trainers.pop(peer.id, None) is not None:
            self._state.leave(peer.id)
            now = time.monotonic()
            self._patience.left(now)
            self.pace.forget(peer.id, now)
        self.changed.notify_all()

    def culprit_pid(self) -> int | None:
        """The process that holds the feed back now."""
        return None if self.pace.culprit is None else self._trainers[self.pace.culprit][0].pid

    def trainers(self) -> tuple[TrainerStatistics, ...]:
        """The trainers as they are now."""
        now = time.monotonic()
        return tuple(
            trainer_statistics(
                peer,
                self._state,
                batch_size=hello.batch_size or self._welcome.batch_size,
                borrow=hello.borrow,
                held_back_s=self.pace.total_s(peer.id, now),
            )
            for peer, hello in self._trainers.values()
        )
