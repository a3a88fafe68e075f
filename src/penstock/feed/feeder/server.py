"""The side of a feeder that trainers talk to: admits them, hears them, and announces blocks to them.

One thread serves the sockets; the thread that runs the source works through ``Publisher``. One lock guards
everything, and nothing that is done under it waits for a peer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from penstock._version import __version__
from penstock.contracts import Cursor, Ids, Known, WritableRing
from penstock.errors import GpuLost, PenstockError
from penstock.feed import wire
from penstock.feed.endpoint import Endpoint, checked_name
from penstock.feed.feeder.blocks import FeedMember, PublishedBlock
from penstock.feed.feeder.connections import Connections, Peer
from penstock.feed.feeder.departures import Departures
from penstock.feed.feeder.feed_state import FeedState
from penstock.feed.feeder.pace import Pace, Patience
from penstock.feed.feeder.session import (
    Session,
    member_of,
    objection_to,
    objection_to_moving,
    objection_to_reading,
)
from penstock.feed.settings import Settings
from penstock.feed.statistics import FeederStatistics, TrainerStatistics
from penstock.feed.witness import Witnesses
from penstock.memory.host_ring import UnusedPages
from penstock.memory.slots import EMPTY


class Server:
    """Serves one feed's trainers: one session each."""

    def __init__(
        self,
        endpoint: Endpoint,  # the feed's files; the caller holds its lock
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
        """Guards everything. It is entered by ``with`` itself: a Condition's is entered in Python, and stays
        locked for ever if Ctrl-C comes there."""
        self.changed = threading.Condition(self.lock)
        """Notified when anything that a waiting thread may want has changed."""
        self.pace = Pace()  # who holds the feed back
        self.closing: str | None = None
        """Why the feed ends, once it does; empty when it has simply been read to its end."""
        self._state = state  # who reads what; guarded by ``lock`` from now on
        self._settings: Settings = welcome.settings
        self.name = welcome.name
        self._welcome = welcome  # the welcome that each trainer gets
        self._rings = rings  # the rings that the welcome names; a trainer gets their descriptors
        self._unused_pages = unused_pages  # gives back the pages of the last of them
        self._statistics = statistics  # returns the feed's statistics
        self._selects = selects  # whether the source can load some samples only
        self._witnesses = witnesses  # what the feed's loader makes of a few samples
        self._failed: wire.Failed | None = None
        self._serves = True
        self._crash: BaseException | None = None
        self.sessions: dict[int, Session] = {}  # the trainers, by the id of their peer, which is the member's
        self._patience = Patience(self._settings.linger, time.monotonic())
        self.departures = Departures(self, state.known_since)  # of trainers to other feeds
        self.connections = Connections(
            endpoint.listen(), self.lock, admit=self._connected, hear=self._hear, gone=self._forget
        )
        self._thread = threading.Thread(target=self._serve, name="penstock-server", daemon=True)

    def start(self) -> None:
        """Serve, until it is closed."""
        self._thread.start()

    # For the thread that runs the source.

    def see(self, ids: Ids | None) -> None:
        """Make a witness of a published block's samples, if a trainer wants one."""
        self._witnesses.see(ids, self._send_witness)

    def _send_witness(self, witness: wire.Witness) -> None:
        with self.lock:
            self.send([each.member for each in self.sessions.values() if each.compares], witness)

    def prepare(self, ahead: wire.Prepare) -> None:
        """Prepare from a place on, for trainers that are to come soon."""
        with self.lock:
            if self._patience.awaits(time.monotonic()):
                epoch_start = Cursor(ahead.epoch_cycle, ahead.epoch_sample)
                self._state.prepare(Cursor(ahead.cycle, ahead.sample), epoch_start, ahead.known)
            self.changed.notify_all()
        self.connections.wake()

    def fail(self, kind: str, message: str, traceback_text: str, raised: str) -> None:
        """Send every trainer, now and later, that the source failed."""
        with self.lock:
            texts = message[:8_000], traceback_text[-32_000:]  # at most 4 bytes a character
            self._failed = wire.Failed(kind, *texts, raised)
            self.send(self._state.members.values(), self._failed)

    def close(self, reason: str) -> None:
        """Say goodbye, wait until every live trainer has been sent it, and end the thread."""
        with self.lock:
            if self.closing is None:
                self._goodbye(reason)
        self.connections.wake()
        with suppress(RuntimeError):  # not started, or interrupted as it was
            self._thread.join()
        self.connections.close()

    def wait_until_ending(self) -> None:
        """Wait until the feed ends before it has been read to its end."""
        with self.lock:
            self.changed.wait_for(lambda: self.closing or not self._serves)

    def end_without_trainers(self) -> None:
        """End once no trainer is left, without lingering; from a handler of signals, too, so without the lock."""
        self._patience.lose(time.monotonic())
        self.connections.wake()

    def is_over(self) -> bool:
        """Whether nothing need be published any more; raises what has ended the other thread, if anything did."""
        if self._crash is not None:
            raise self._crash
        return self.closing is not None or self._state.finished

    # The thread that serves the sockets.

    def _serve(self) -> None:
        try:
            while not self._has_closed():
                self.connections.poll_once(self._timeout_s())
                with self.lock:
                    now = time.monotonic()
                    self._state.beginning.expire(time.monotonic_ns())
                    self._unused_pages.give_back(now)
                    if self._patience.ends_awaiting(now):
                        self._state.end_preparing()
                        self.changed.notify_all()
                    if self._patience.ends_gathering(now):
                        self._state.gathers = False
                        self.changed.notify_all()
        except BaseException as error:
            self._crash = error
        with self.lock:
            self._serves = False
            for peer in list(self.connections.peers.values()):
                self.connections.drop(peer)
            self.changed.notify_all()

    def _has_closed(self) -> bool:
        with self.lock:
            alone = not self._state.attended
            if self.closing is None and alone and self._patience.has_lingered(time.monotonic()):
                self._goodbye("had no trainer left")
            if self.closing is None:
                return False
            # Wait for trainers whose blocks have yet to be announced.
            return self.closing != "" or self.connections.all_sent

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
        match message:
            case wire.StatisticsRequest(sends=sends):
                if sends:
                    self._patience.awaits_on(time.monotonic())
                self._answer(peer, self._statistics())
            case wire.FingerprintRequest():
                self._answer(peer, wire.MadeOf(self._welcome.fingerprint))
            case wire.Stop(pid=pid):
                reason = f"was stopped by process {pid}"
                self._goodbye(reason)
                self.connections.dismiss(peer, wire.encode(wire.Bye(reason)))
            case wire.MoveTrainer():
                self._pass_on(peer, message)
            case wire.Hello():
                self._admit(peer, message)
            case _ if (session := self.sessions.get(peer.id)) is not None:
                self._obey_trainer(session, message)
            case _:
                self._reject(peer, "a trainer says hello first")

    def _obey_trainer(self, session: Session, message: wire.FromTrainer) -> None:
        peer, id, now = session.peer, session.peer.id, time.monotonic()
        match message:
            case wire.WitnessRequest(number=number):
                session.compares = True
                if witness := self._witnesses.want(number):
                    self._answer(peer, witness)
            case wire.Release(blocks=blocks, waited_ms=waited_ms, left_out=left_out):
                session.member.wait_s, session.left_out = waited_ms / 1e3, left_out
                if not self._state.release(id, blocks):
                    self._reject(peer, "it released a block that it was never sent")
                elif blocks and self.pace.culprit == id:
                    self.pace.moving(now)
            case wire.Read(before=before):
                if not self._state.has_read(id, before):
                    self._reject(peer, "it has read a block that it was never sent")
            case wire.Starved(serial=serial):
                session.starved = serial
            case wire.Detach(keep=viewed):
                if not self._state.was_sent(id, viewed):
                    self._reject(peer, "it holds a block that it was never sent")
                    return
                self._state.rest(id, viewed)
                self._patience.left(now)
                if self.pace.culprit == id:
                    self.pace.moving(now)
            case wire.Stay(to=to):
                self.departures.stays(to)
            case wire.Start() | wire.EpochBegun():
                if objection := objection_to_reading(message, self._welcome, self._state, id):
                    self._reject(peer, objection)
                elif isinstance(message, wire.EpochBegun):
                    self._state.begin_epoch(id, message.epoch, Cursor(message.cycle, message.sample))
                else:
                    self._start(session, message)
            case _:  # what any peer may send
                pass

    def _pass_on(self, peer: Peer, message: wire.MoveTrainer) -> None:
        """Send a process's trainers to another feed, and answer the peer that asked."""
        checked_name(message.to)
        trainers = [each for each in self.sessions.values() if each.peer.pid == message.pid]
        if objection := objection_to_moving(message, [each.hello for each in trainers], self._state):
            self._reject(peer, objection)
        else:
            members = [each.member.id for each in trainers]
            self.departures.cancel(members)  # the later word counts
            for each in trainers:
                each.told |= not message.why
            if message.now and message.to != self.name:
                self.departures.begin(members, message.to, message.why)
            else:
                self.send([each.member for each in trainers], wire.Move(message.to))
            self._answer(peer, wire.Move(message.to))

    def _admit(self, peer: Peer, hello: wire.Hello) -> None:
        known = peer.id in self.sessions
        if objection := objection_to(hello, self._welcome, known=known, selects=self._selects):
            self._reject(peer, objection)
            return
        if self.closing is not None or (self._failed is not None and self._failed.kind == GpuLost.__name__):
            self.connections.drop(peer)  # it looks for the feeder that comes in this one's place
            return
        member = member_of(peer, hello, self._welcome.samples)
        if self._state.rank_taken(member):
            self._reject(peer, f"rank {hello.rank} of {hello.world} has joined already")
            return
        peer.introduce()
        if hello.registers:
            self._unused_pages.retain_all()
        self.sessions[peer.id] = Session(peer, hello, member)
        self._state.join(member)
        fds: list[int] = []
        try:
            for ring in self._rings:
                fds.append(ring.open_for_readers())  # noqa: PERF401 - those that are open are closed if one cannot be
            self.connections.send([peer], wire.encode(self._welcome), fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _start(self, session: Session, message: wire.Start) -> None:
        member = session.member
        if message.serial == member.serial:
            return  # repeated by a trainer that was interrupted, and cannot know whether it had sent it
        session.way = message.way
        at = None if message.cycle is None else Cursor(message.cycle, message.sample)
        epoch_start = Cursor(message.epoch_cycle, message.epoch_sample)
        asked = at, message.epoch, epoch_start, message.serial, message.known
        bounds = self._state.bounds
        started = self._state.start(member.id, *asked, leaves=message.leaves)
        if started is None:
            self.send([member], wire.Apart(message.serial))
        if started:
            self._patience.came(time.monotonic())
        if started:  # who reads must know of joints before they are used: a death may follow
            self.send_joints(started if bounds else None)
            self.send_cycles([bounds.known([each]) for each in bounds.news] if bounds else [])
        for each in started or []:
            assert each.next is not None
            self.send([each], wire.Started(each.serial, *each.next))
            for item in self._state.backlog(each):
                if isinstance(item, Cursor):
                    self.send([each], wire.CycleEnd(*item))
                else:
                    self.announce(item, [each])
        if self._state.gathers:
            self._patience.gathers(time.monotonic())
        if self._failed is not None:
            self.send([member], self._failed)

    # Both threads, under the lock.

    def announce(self, block: PublishedBlock, readers: list[FeedMember]) -> None:
        """Announce a block to these members."""
        layout, leaf_offsets, leaf_bytes, _ = block.placement
        where = block.offset, leaf_offsets, leaf_bytes, block.published_ns
        packets: dict[bool, bytes] = {}
        for member in readers:
            if (session := self.sessions.get(member.id)) is None:  # those that are to come
                continue
            known = session.layout is layout or layout is EMPTY.layout
            if known not in packets:
                what = None if known else layout, block.ids, block.kept
                message = wire.BlockAnnounced(block.number, *block.at, block.rows, *where, *what)
                packets[known] = wire.encode(message)
            if not known:
                session.layout = layout
            self.connections.send([session.peer], packets[known])

    def send(self, members: Iterable[FeedMember], message: wire.FromFeeder) -> None:
        """Send a message to these members."""
        here = [self.sessions[member.id].peer for member in members if member.id in self.sessions]
        self.connections.send(here, wire.encode(message))

    def deaf(self) -> list[FeedMember] | None:
        """Return who reads and has yet to take what was sent; None if all is in the kernel's hands."""
        reading = (each for each in self.sessions.values() if each.member.next is not None)
        return [each.member for each in reading if each.peer.queue] or None

    def send_joints(self, to: Iterable[FeedMember] | None = None) -> None:
        """Send to these, or all who read, what they must know of joints or cycles."""
        for member in self._state.members.values() if to is None else to:
            if member.next is not None and (known := self._state.known_since(member)) is not None:
                self.send([member], wire.InForce(known))

    def send_cycles(self, known: Iterable[Known]) -> None:
        """Send what is new of a stream's cycles to all who read."""
        for each in known:
            self.send([m for m in self._state.members.values() if m.next], wire.InForce(each))

    def _answer(self, peer: Peer, message: wire.FromFeeder) -> None:
        self.connections.send([peer], wire.encode(message))

    def _goodbye(self, reason: str) -> None:
        bye = wire.Bye(reason)
        if reason:
            for each in list(self.sessions.values()):
                self.connections.dismiss(each.peer, wire.encode(bye))
        else:
            self.send(self._state.members.values(), bye)
        self.closing = reason  # now: who is interrupted before sends goodbye again
        self.changed.notify_all()

    def _reject(self, peer: Peer, reason: str) -> None:
        self.connections.dismiss(peer, wire.encode(wire.Rejected(reason[:4000], __version__, wire.PROTOCOL)))

    def _forget(self, peer: Peer) -> None:
        """Free what a trainer held."""
        if self.sessions.pop(peer.id, None) is not None:
            self._state.leave(peer.id)
            now = time.monotonic()
            self._patience.left(now)
            self.pace.forget(peer.id, now)
        self.changed.notify_all()

    def culprit_pid(self) -> int | None:
        """The process that holds the feed back now."""
        return None if self.pace.culprit is None else self.sessions[self.pace.culprit].peer.pid

    def trainers(self) -> tuple[TrainerStatistics, ...]:
        """The trainers as they are now."""
        now, size = time.monotonic(), self._welcome.batch_size
        return tuple(
            each.statistics(self._state, size, self.pace.total_s(id, now)) for id, each in self.sessions.items()
        )
