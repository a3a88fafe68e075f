"""The feeder's side of the sockets: admits trainers, hears them, and tells them of blocks.

One thread serves all connections; the thread that runs the source calls
``reserve`` and ``publish``. One lock guards the roster; nothing under it waits.
"""

from __future__ import annotations

import enum
import os
import select
import socket
import threading
import time
from collections.abc import Callable

import msgspec

import penstock
from penstock.contracts import Cursor
from penstock.errors import PenstockError
from penstock.feed import wire
from penstock.feed.directory import Place
from penstock.feed.pace import Pace
from penstock.feed.fork import close_in_children
from penstock.feed.peer import Peer
from penstock.feed.roster import Member, PublishedBlock, Roster
from penstock.feed.settings import Settings
from penstock.feed.statistics import FeederStatistics, TrainerStatistics
from penstock.feed.writer import Parcel

_READ = select.EPOLLIN | select.EPOLLHUP | select.EPOLLRDHUP
_FIRST_TRAINER_S = 60.0
"""A lingering feeder waits at least this long for its first trainer."""


_GOODBYE_S = 2.0
"""For so long a feed that is stopped waits for a trainer that does not read."""


class Turn(enum.Enum):
    """What to do with a block instead of writing it."""

    SKIP = "nobody needs it, but somebody needs a later one"
    ELSEWHERE = "somebody needs another position, or the feed ends"


class Server:
    """Serves one feed's trainers.

    Args:
        place: The feed's files; the caller holds its lock.
        welcome: What each trainer is told.
        ring_fd: Gives a descriptor of the ring for a trainer; it is closed after sending.
        statistics: Gives the feed's statistics, for whoever asks.
    """

    def __init__(
        self,
        place: Place,
        roster: Roster,
        welcome: wire.Welcome,
        ring_fd: Callable[[], int],
        statistics: Callable[[], FeederStatistics],
    ) -> None:
        self.roster = roster
        self.pace = Pace()
        self.changed = threading.Condition()
        self.closing: str | None = None  # why, once it is
        self.ending = threading.Event()  # set with it
        self._failed: wire.Failed | None = None
        self._crash: BaseException | None = None
        self._settings: Settings = welcome.settings
        self._welcome = welcome
        self._ring_fd = ring_fd
        self._statistics = statistics
        self._peers: dict[int, Peer] = {}
        self._by_fd: dict[int, Peer] = {}
        self._hellos: dict[int, wire.Hello] = {}
        self._next_id = 0
        self._close_by = 0.0
        self._empty_since = time.monotonic() + max(0.0, _FIRST_TRAINER_S - (self._settings.linger or 0))
        self._listener = place.listen()
        self._listener.setblocking(False)
        close_in_children(self._listener)
        self._wake, waker = socket.socketpair()
        self._waker = waker
        close_in_children(self._wake)
        close_in_children(self._waker)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._thread = threading.Thread(target=self._serve, name="penstock-server", daemon=True)
        self._thread.start()

    # --- for the thread that runs the source -------------------------------------------------

    def await_need(self) -> Cursor | None:
        """Wait until somebody needs a position; None once the feed is over."""
        with self.changed:
            while True:
                self._raise_crash()
                if self.closing is not None or self.roster.finished:
                    return None
                if (needed := self.roster.needed()) is not None:
                    return needed
                self.changed.wait()

    def reserve(self, nbytes: int, at: Cursor, rows: int) -> int | Turn:
        """Wait for room for a block that somebody needs; its offset in the ring."""
        with self.changed:
            while True:
                self._raise_crash()
                if self.closing is not None or self.roster.finished:
                    return Turn.ELSEWHERE
                needed = self.roster.needed()
                if needed is None:
                    self.changed.wait()
                    continue
                if needed < at or needed.cycle > at.cycle:
                    return Turn.ELSEWHERE
                if needed.sample >= at.sample + rows:
                    return Turn.SKIP
                if (offset := self.roster.room.reserve(nbytes)) is not None:
                    self.pace.moving(time.monotonic())
                    return offset
                self._blocked()

    def publish(self, at: Cursor, rows: int, offset: int, parcel: Parcel) -> None:
        """Announce a block that has been written to everybody who needs it."""
        with self.changed:
            note = parcel.layout, parcel.leaf_bytes, time.monotonic_ns()
            self._announce(*self.roster.publish(at, rows, offset, parcel.nbytes, note))

    def end_cycle(self, cycle: int, samples: int) -> None:
        """Tell who needs to know that this cycle has no more samples."""
        packet = wire.encode(wire.CycleEnd(cycle, samples))
        with self.changed:
            for member in self.roster.end_cycle(cycle):
                self._send(self._peers[member.id], packet)

    def fail(self, kind: str, message: str, traceback_text: str) -> None:
        """Tell every trainer, now and later, that the source failed."""
        with self.changed:
            self._failed = wire.Failed(kind, message[:16_000], traceback_text[-64_000:])
            packet = wire.encode(self._failed)
            for id in self._hellos:
                self._send(self._peers[id], packet)

    def close(self, reason: str) -> None:
        """Say goodbye, wait until it is sent to all who live, and end the thread."""
        with self.changed:
            if self.closing is None:
                self._goodbye(reason)
        self._waker.send(b"x")
        self._thread.join()
        self._wake.close()
        self._waker.close()

    def _blocked(self) -> None:
        now = time.monotonic()
        greediest = self.roster.greediest()
        self.pace.blocked(greediest.id if greediest else None, now)
        limit = self._settings.stall_timeout
        if limit is None:
            self.changed.wait()
        elif greediest and self.pace.current_s(now) > limit:
            self._evict(greediest, now)
        else:
            self.changed.wait(limit - self.pace.current_s(now) + 0.001)

    def _evict(self, member: Member, now: float) -> None:
        peer = self._peers[member.id]
        message = (
            f"this trainer (pid {peer.pid}) held {member.held_bytes:,} of "
            f"{self.roster.room.capacity_bytes:,} bytes of feed {self._welcome.name!r} and released none of "
            f"them for {self.pace.current_s(now):.1f} s, longer than the feed's stall_timeout of "
            f"{self._settings.stall_timeout} s; the others went on without it. Raise stall_timeout or window, "
            "or load its last state_dict() into a new Loader"
        )
        peer.queue.clear()  # announcements that it has not received mean nothing now
        self._send(peer, wire.encode(wire.Evicted(message)))
        self._forget(peer)
        peer.leaving = True
        self._close_if_sent(peer)

    # --- the thread that serves the sockets ----------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._over():
                for fd, events in self._epoll.poll(self._poll_s()):
                    self._handle(fd, events)
        except BaseException as error:
            self._crash = error
        with self.changed:
            for peer in list(self._peers.values()):
                self._drop(peer)
            self._listener.close()
            self._epoll.close()
            self.changed.notify_all()

    def _over(self) -> bool:
        with self.changed:
            linger = self._settings.linger
            if (
                self.closing is None
                and linger is not None
                and not self._hellos
                and time.monotonic() > self._empty_since + linger
            ):
                self._goodbye("had no trainer left")
            if self.closing is None:
                return False
            # Who has had everything is waited for, however long it takes to hear so.
            return not any(peer.queue for peer in self._peers.values()) or (
                self.closing != "" and time.monotonic() > self._close_by
            )

    def _poll_s(self) -> float | None:
        if self.closing is not None:
            return _GOODBYE_S
        linger = self._settings.linger
        if linger is None or self._hellos:
            return None
        return max(0.0, self._empty_since + linger - time.monotonic()) + 0.01

    def _handle(self, fd: int, events: int) -> None:
        if fd == self._listener.fileno():
            self._accept()
            return
        if fd == self._wake.fileno():
            self._wake.recv(64)
            return
        with self.changed:
            peer = self._by_fd.get(fd)
            if peer is None:  # dropped while this batch of events was handled
                return
            if events & select.EPOLLOUT:
                if not peer.flush():
                    self._drop(peer)
                    return
                if not peer.queue:
                    self._epoll.modify(fd, _READ)
                    self._close_if_sent(peer)
            if events & _READ and peer.id in self._peers:
                self._hear(peer)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        with self.changed:
            peer = Peer(connection, self._next_id)
            self._next_id += 1
            self._peers[peer.id] = self._by_fd[connection.fileno()] = peer
            self._epoll.register(connection, _READ)
            if peer.uid != os.getuid():
                self._reject(peer, f"you are uid {peer.uid}, the feed belongs to uid {os.getuid()}")

    def _hear(self, peer: Peer) -> None:
        for _ in range(64):
            try:
                packet = peer.connection.recv(wire.MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self._drop(peer)
                return
            if peer.leaving:
                continue
            try:
                message = wire.decode_from_trainer(packet)
                self._obey(peer, message)
            except (msgspec.DecodeError, PenstockError, UnicodeDecodeError) as error:
                self._reject(peer, f"a message was not understood: {error}")
            if peer.id not in self._peers:
                return

    def _obey(self, peer: Peer, message: wire.FromTrainer) -> None:
        if isinstance(message, wire.Ask):
            self._send(peer, wire.encode(self._statistics()))
        elif isinstance(message, wire.Stop):
            self._goodbye(f"was stopped by process {message.pid}")
        elif isinstance(message, wire.Hello):
            self._admit(peer, message)
        elif peer.id not in self._hellos:
            self._reject(peer, "a trainer says hello first")
        elif isinstance(message, wire.Release):
            if not self.roster.release(peer.id, message.blocks):
                self._reject(peer, "it released a block that it did not hold")
            elif self.pace.culprit == peer.id:
                self.pace.moving(time.monotonic())
        elif isinstance(message, wire.Epoch):
            self.roster.begin_epoch(peer.id, message.epoch, Cursor(message.cycle, message.sample))
        else:
            self._start(peer, message)
        self.changed.notify_all()

    def _admit(self, peer: Peer, hello: wire.Hello) -> None:
        if hello.protocol != wire.PROTOCOL:
            self._reject(
                peer,
                f"it speaks protocol {hello.protocol} (penstock {hello.version}), the feeder {wire.PROTOCOL} "
                f"(penstock {penstock.__version__})",
            )
        elif peer.id in self._hellos or hello.rank >= hello.world:
            self._reject(peer, "its hello makes no sense")
        elif hello.borrow and self._settings.stall_timeout is not None:
            self._reject(
                peer,
                f"the feed evicts trainers after stall_timeout={self._settings.stall_timeout} s, and a view "
                "cannot outlive an eviction: use borrow=False, or a feed without stall_timeout",
            )
        elif self.roster.rank_taken(hello.group, hello.rank, hello.world):
            self._reject(peer, f"rank {hello.rank} of {hello.world} has joined already")
        elif self.closing is not None:
            self._drop(peer)
        else:
            self._hellos[peer.id] = hello
            self.roster.join(Member(peer.id, hello.rank, hello.world, hello.group))
            fd = self._ring_fd()
            try:
                if not peer.send(wire.encode(self._welcome), fd):
                    self._drop(peer)
            finally:
                os.close(fd)

    def _start(self, peer: Peer, message: wire.Start) -> None:
        samples = self._welcome.samples
        if samples is not None and max(message.sample, message.epoch_sample) >= samples:
            self._reject(peer, f"it asked for sample {message.sample} of a cycle of {samples}")
            return
        at = None if message.cycle is None else Cursor(message.cycle, message.sample)
        epoch_start = Cursor(message.epoch_cycle, message.epoch_sample)
        for member in self.roster.start(peer.id, at, message.epoch, epoch_start):
            assert member.next is not None
            started = self._peers[member.id]
            self._send(started, wire.encode(wire.Started(*member.next)))
            for block in self.roster.backlog(member):
                self._announce(block, [member])
        if self._failed is not None:
            self._send(peer, wire.encode(self._failed))

    # --- both threads, under the lock ------------------------------------------------------------

    def _announce(self, block: PublishedBlock, readers: list[Member]) -> None:
        layout, leaf_bytes, published_ns = block.note
        packets: dict[bool, bytes] = {}
        for member in readers:
            peer = self._peers[member.id]
            known = peer.layout is layout
            if known not in packets:
                packets[known] = wire.encode(
                    wire.Block(
                        block.number,
                        *block.at,
                        block.rows,
                        block.offset,
                        leaf_bytes,
                        published_ns,
                        None if known else layout,
                    )
                )
            peer.layout = layout
            self._send(peer, packets[known])

    def _send(self, peer: Peer, packet: bytes) -> None:
        if not peer.send(packet):
            return  # the kernel reports its end to the serving thread as well
        if peer.queue:
            self._epoll.modify(peer.connection, _READ | select.EPOLLOUT)

    def _reject(self, peer: Peer, reason: str) -> None:
        self._forget(peer)
        self._send(peer, wire.encode(wire.Rejected(reason, penstock.__version__, wire.PROTOCOL)))
        peer.leaving = True
        self._close_if_sent(peer)

    def _close_if_sent(self, peer: Peer) -> None:
        if peer.leaving and not peer.queue:
            self._drop(peer)

    def _forget(self, peer: Peer) -> None:
        """Free what a trainer held."""
        if self._hellos.pop(peer.id, None) is not None:
            self.roster.leave(peer.id)
            self.pace.forget(peer.id, time.monotonic())
            self._empty_since = time.monotonic()
            self.changed.notify_all()

    def _drop(self, peer: Peer) -> None:
        if self._peers.pop(peer.id, None) is not None:
            self._forget(peer)
            del self._by_fd[peer.connection.fileno()]
            self._epoll.unregister(peer.connection)
            peer.connection.close()

    def _goodbye(self, reason: str) -> None:
        self.closing = reason
        self.ending.set()
        self._close_by = time.monotonic() + _GOODBYE_S
        packet = wire.encode(wire.Bye(reason))
        for id in self._hellos:
            self._send(self._peers[id], packet)
        self.changed.notify_all()

    def _raise_crash(self) -> None:
        if self._crash is not None:
            raise self._crash

    def pid_of(self, member: int) -> int:
        return self._peers[member].pid

    def trainers(self) -> tuple[TrainerStatistics, ...]:
        """The trainers as they are now."""
        now = time.monotonic()
        found: list[TrainerStatistics] = []
        for id, hello in self._hellos.items():
            member = self.roster.members[id]
            oldest = next(iter(member.held), None)
            at = self.roster.blocks[oldest].at if oldest is not None else member.next or Cursor(0, 0)
            state = (
                "finished"
                if member.finished
                else "reading"
                if member.reads
                else "waiting"
                if member.pending
                else "attached"
            )
            found.append(
                TrainerStatistics(
                    pid=self._peers[id].pid,
                    batch_size=hello.batch_size or self._welcome.batch_size,
                    borrow=hello.borrow,
                    rank=hello.rank,
                    world=hello.world,
                    epoch=member.epoch,
                    state=state,
                    cycle=at.cycle,
                    sample=at.sample,
                    lag_samples=member.held_rows,
                    held_bytes=member.held_bytes,
                    held_back_s=self.pace.total_s(id, now),
                )
            )
        return tuple(found)
