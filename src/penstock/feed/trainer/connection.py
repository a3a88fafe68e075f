"""A trainer's side of the socket: one connection to a feeder, its ring, and the blocks announced on it."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import msgspec

from penstock.basics.terminal import say
from penstock.contracts import Cursor, Known, Ring
from penstock.errors import FeederLost, GpuLost, PenstockError, ProtocolError, TrainerEvicted, WindowHeld
from penstock.feed import wire
from penstock.feed.endpoint import Endpoint
from penstock.feed.statistics import FeederStatistics
from penstock.feed.trainer.error_texts import Reasons, again, ended, failure, not_found, refusal, silent
from penstock.feed.trainer.holdings import CycleEnded, Holdings, ReceivedBlock, most_unsent
from penstock.feed.trainer.line import Line, introduced, of_the_system
from penstock.linux.files import Descriptors
from penstock.linux.fork import close_in_children
from penstock.memory.host_ring import HostRing

OpenRing = Callable[[wire.Welcome, Sequence[int]], Ring]
"""Maps one of a feed's rings by its descriptor, which may then be closed."""

_TICK_S = 1
_SETTLED_AFTER_MS = 2
"""A trainer that has waited this long for a block waits for its copies, and releases what they have read."""
_SIZE = (wire.MAX_PACKET_BYTES,)
_ASK_AFTER_S = 1.5
"""A trainer that has waited this long for a block asks each second what for, and says so from the answer on."""


class EpochApart(Exception):
    """Raised where a trainer's epoch had other joints than the feed has: it must read the rest elsewhere."""


class FeedConnection:
    """A connection to one feeder.

    A call that an asynchronous exception breaks off leaves it whole, as ``Holdings`` explains; a packet is
    received and recorded in one step, and taken from the record together with what it changes. The feeder must
    answer within ``answer_s`` seconds; once admitted, a trainer waits for ever.
    """

    _lost_gpu = False  # whether the GPU of the feed's ring has failed its feeder

    def __init__(self, endpoint: Endpoint, hello: wire.Hello, open_ring: OpenRing, answer_s: float) -> None:
        self.latency_s = 0.0  # time from publishing to receiving the newest block that was waited for
        self.moves_to: str | None = None
        """The feed that the feeder asks this trainer to move to, as far as it has been heard."""
        self.leaves = False  # whether it is to go there now, from its place
        self.why = ""  # for the user
        self.way = ""  # how batches come out of its ring, in words for its feeder
        self.prepare: Callable[[FeedConnection, wire.Prepare], None] | None = None
        """Called with this connection when the feeder asks this trainer to start another feed."""
        self.settle: Callable[..., bool] = _nothing_is_left  # releases what has been copied, see ``Destination``
        self.known = Known()  # what is known of joints at the place that is read
        self.held_up: Callable[[], None] = lambda: None
        """Called now and then while this trainer waits for a block because of another."""
        self._endpoint = endpoint
        self._inbox: deque[bytes] = deque()
        self._ordinal = 0  # of the next block that is announced
        self._serials = count(1)
        self._serial = 0  # of the start that was asked for last, and of the one that has been heard last
        self._heard = 0
        self._started_at = Cursor(0, 0)
        self._apart = 0
        self._asked_for: tuple[object, ...] | None = None  # the start that is waited for
        self._failed: wire.Failed | None = None
        self._starved = 0  # serial of the last word that nothing comes
        self._reasons = Reasons(hello.pid)
        self._ended: PenstockError | None = None
        self._witnesses: dict[int, wire.Witness] = {}
        try:
            self._socket = endpoint.connect(answer_s)
        except TimeoutError:
            raise silent(endpoint, answer_s) from None
        except OSError:
            raise not_found(endpoint.name) from None
        close_in_children(self._socket)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._line = Line(self._socket)
        self._send, self.leave_out = self._line.send, self._line.leave_out
        try:
            descriptors = Descriptors()
            self._validator, self.welcome, fds = introduced(self._socket, endpoint, hello, answer_s, descriptors)
            self.ring = open_ring(self.welcome, fds)  # the mapped ring
            descriptors.close()
            self.sharing = self.welcome.rings[-1 if self.ring.kind == HostRing.kind else 0]  # name of the ring
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _TICK_S, 0))
            self.held = Holdings(
                self.ring,
                self.welcome.settings.window_bytes,
                most_unsent=most_unsent(self.welcome.settings.prefetch, self.welcome.batches),
                send=self._line.send_releases,
                idle=self._line.loans_ended,
            )
            """Blocks that have come."""
        except BaseException:
            self._socket.close()
            raise

    def start(
        self, at: Cursor | None, epoch: int, epoch_start: Cursor, known: Known, *, leaves: bool = False
    ) -> Cursor:
        """Begin to read at a position, or near at hand where the feeder says; return where.

        Blocks announced before are released, those announced after are stored in order. May wait for the other
        ranks of a group. ``known`` is what the trainer knows of the joints where its epoch began. It ``leaves`` if
        it can read elsewhere, where it would wait for the feed for cycles.
        """
        asked = at, epoch, epoch_start, known
        if self._asked_for != asked:  # else a call was broken off while it waited, and waits on
            self._asked_for = None
            self._serial = next(self._serials)  # from here on, what was sent for an earlier start is void
            self.held.release_before(self.held.end)
            self.held.flush()
            self._check_source()
            self._asked_for = asked
            self.known = self.known._replace(cycles=known.cycles, columns=known.columns)
        if self._heard != self._serial:  # the feeder hears a serial once
            cycle, sample = (None, 0) if at is None else at
            self._send(wire.Start(self._serial, cycle, sample, epoch, *epoch_start, known, leaves, self.way))
        began = time.monotonic()
        while self._heard != self._serial:
            if self._apart == self._serial:
                self._asked_for = None
                raise EpochApart
            self._wait_once(began)
            self._check_source()
        self._asked_for = None
        return self._started_at

    def epoch(self, epoch: int, start: Cursor) -> None:
        """Announce to the feeder which epoch this trainer is in, and where that began."""
        self.known = self.known.since(start.cycle)
        self._send(wire.EpochBegun(epoch, *start))

    def item(self, index: int) -> ReceivedBlock | CycleEnded | None:
        """Return the block, or the end of a cycle, at this index; wait for it, or until it ``leaves``."""
        if index >= self.held.end:
            self._wait(index)
        return self.held.items[index] if index < self.held.end else None

    def has(self, index: int) -> bool:
        """Whether ``item`` would return at once; receives what has come."""
        return index < self.held.end or (self._receive(wait=False) and index < self.held.end)

    def present(self, index: int) -> Iterator[ReceivedBlock]:
        """Yield the blocks that are there from this index on, up to the end of a cycle."""
        while self.has(index) and isinstance(item := self.held.items[index], ReceivedBlock):
            yield item
            index += 1

    def poll(self) -> None:
        """Receive what has come, without waiting.

        Called after a copy out of the ring, it raises if the bytes may have been
        overwritten: a feeder announces an eviction before it writes again.
        """
        self._receive(wait=False)
        if isinstance(self._ended, (TrainerEvicted, FeederLost, ProtocolError)):
            raise again(self._ended)

    def asked_to_move(self) -> str | None:
        """Return the feed that this trainer is asked to move to; receives what has come."""
        self._receive(wait=False)
        return self.moves_to

    def stay(self, to: str) -> None:
        """Tell the feeder that this trainer does not leave for a feed; another thread may do so, too."""
        self._send(wire.Stay(to))

    def ask_witness(self, number: int) -> None:
        """Ask what the feeder's loader makes of a few samples, which ``witness`` returns."""
        self._send(wire.WitnessRequest(number))

    def witness(self, number: int, wait_s: float, *, complete: bool) -> wire.Witness | None:
        """Return what has come of a witness, or all of it; None if it does not come within ``wait_s``."""
        until_s = time.monotonic() + wait_s
        while True:
            self._receive(wait=False)
            witness = self._witnesses.get(number)
            if witness is not None and (witness.why or witness.leaves is not None or not complete):
                return witness
            if self._ended is not None or (left_s := until_s - time.monotonic()) <= 0:
                return None
            wait([self._socket], left_s)

    def close(self) -> None:
        """Read no more; the connection ends when the last view of its blocks dies, or now."""
        if not self._line.is_ours or self._socket.fileno() < 0:
            return
        if not self._line.is_closed:
            # First: to a trainer that has released all of its blocks, the feeder sends more.
            self._send(wire.Detach(self.held.lent))
        self._line.is_closed = True
        self.held.release_before(self.held.end)
        self.held.flush()
        self.ring.close()
        if not self.held.lent:
            self._socket.close()

    @property
    def successor(self) -> wire.Welcome:
        """The feed, for a feeder in the place of this one: without a ring on a GPU that has failed."""
        welcome = self.welcome
        return msgspec.structs.replace(welcome, rings=welcome.rings[-1:]) if self._lost_gpu else welcome

    @property
    def wait_s(self) -> float:
        """Time spent waiting for blocks."""
        return self._line.wait_s

    def _wait(self, index: int) -> None:
        settled = self.settle(wait=False)
        self.held.flush()
        if self.held.first < index or self.held.lent:
            self._send(wire.Read(self._ordinal))
        self._starved = 0
        began = time.monotonic()
        try:
            while index >= self.held.end and not self.leaves:
                self._check_source()
                settled = settled or self._settle()
                self._wait_once(began)
        finally:
            self._line.wait_s += time.monotonic() - began
        newest = self.held.items[self.held.end - 1] if index < self.held.end else None
        if isinstance(newest, ReceivedBlock):
            self.latency_s = (time.monotonic_ns() - newest.published_ns) / 1e9

    def _settle(self) -> bool:
        """Release what was copied by the time that something comes; if nothing does, wait for the copies.

        Nobody else looks for their end, and the feeder may wait for the room that they read.
        """
        came = self._poll.poll(_SETTLED_AFTER_MS)
        settled = self.settle(wait=not came)
        self.held.flush()
        return settled

    def _wait_once(self, began: float) -> None:
        """Wait for a packet, for at most a second; if none comes, ask the feeder why, and print its answer."""
        if self._ended is not None:
            raise again(self._ended)
        if self._receive(wait=True):
            return
        self.settle(wait=True)  # views may have died meanwhile
        self.held.release_before(self.held.first)
        self.held.flush()
        if self.held.lent:
            self._starved = next(self._serials)
            self._send(wire.Starved(self._starved))
        waited_s = time.monotonic() - began
        if waited_s < _ASK_AFTER_S:
            self._reasons.begin()
            return
        self._reasons.say(began, waited_s)
        if self._heard == self._serial:
            if self._reasons.held_back:
                self.held_up()
            self._send(wire.Release([], int((self.wait_s + waited_s) * 1e3), self._line.left_out))
        self._validator.asked = True
        self._reasons.ask(self._endpoint.name, self.welcome.pid)
        self._send(wire.StatisticsRequest())

    def _check_source(self) -> None:
        if self._failed is not None:
            raise failure(self._failed)

    def _receive(self, *, wait: bool) -> bool:
        """Handle what has come; return whether there was anything, the connection's end included."""
        if self._ended is None:
            try:
                if wait and not self._inbox:
                    self._record(0)
                else:
                    while not self._inbox or self._inbox[-1]:
                        self._record(socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
            except OSError as error:
                if not of_the_system(error):
                    raise
                self._inbox.append(b"")
        some = bool(self._inbox)
        while self._inbox and self._ended is None:
            self._take()
        return some

    def _record(self, flags: int) -> None:
        """Receive a packet, empty if there will be no more, and append it to the inbox.

        One call into C does both, so no Python exception can come between them.
        """
        try:
            self._inbox.extend(map(self._socket.recv, _SIZE, (flags,)))
        except ConnectionResetError:  # see ``despite_reset``
            self._inbox.extend(map(self._socket.recv, _SIZE, (flags,)))

    def _take(self) -> None:
        """Do what the inbox's first packet says, and remove it.

        What must not happen twice stands beside the removal, without a call between them.
        """
        packet = self._inbox[0]
        if not packet:
            log = self._endpoint.sweep()
            self._ended = FeederLost(f"{self._feeder} died" + (f"; the end of its log: {log}" if log else ""))
            return
        try:
            message, following = self._validator.message(packet)
        except ProtocolError as error:
            self._ended = again(error)
            raise
        if isinstance(message, wire.BlockAnnounced):
            held, index = self.held, self.held.end
            block = ReceivedBlock(message, self._ordinal, self._validator)
            held.largest_bytes = max(held.largest_bytes, block.nbytes)
            self._starved = 0
            if self._heard == self._serial:
                held.items[index] = block
                held.end = index + 1
            else:  # announced before the feeder heard of the new start
                held.unsent[block.ordinal] = block.nbytes
            self._ordinal = block.ordinal + 1
        elif isinstance(message, wire.CycleEnd):
            held, ended = self.held, CycleEnded(message.cycle)
            if self._heard == self._serial:
                held.items[held.end] = ended
                held.end = held.end + 1
        else:
            self._hear(message)
        self._validator.next = following
        del self._inbox[0]

    def _hear(self, message: Any) -> None:
        """Handle a message that may be heard twice."""
        if isinstance(message, wire.Started):
            self._started_at = Cursor(message.cycle, message.sample)
            self._heard = message.serial
        elif isinstance(message, wire.InForce):
            self.known = message.known.after(self.known)
        elif isinstance(message, wire.Apart):
            self._apart = message.serial
        elif isinstance(message, wire.Failed):
            if message.kind == GpuLost.__name__:
                self._lost_gpu = True
                self._ended = FeederLost(f"{self._feeder} has lost its GPU: {message.message}")
            else:
                self._failed = message
        elif isinstance(message, wire.Witness):
            self._witnesses[message.number] = message
        elif isinstance(message, wire.Move):
            self.moves_to, self.leaves, self.why = message.to, message.now, message.why
            if message.why and message.to == self.welcome.name:
                say(f"this trainer (pid {os.getpid()}) stays on feed {message.to!r}: {message.why}")
        elif isinstance(message, wire.Prepare) and self.prepare is not None:
            self.prepare(self, message)
        elif isinstance(message, wire.Evicted):
            self._ended = TrainerEvicted(message.message)
        elif isinstance(message, wire.Stuck):
            if message.serial == self._starved:
                self._starved = 0
                raise WindowHeld(message.message)
        elif isinstance(message, FeederStatistics):
            self._reasons.hear(message)
        elif isinstance(message, wire.Rejected):
            self._ended = refusal(self._endpoint.name, message)
        elif isinstance(message, wire.Bye):
            self._ended = ended(self._endpoint.name, self._feeder, message)

    @property
    def _feeder(self) -> str:
        return f"the feeder (process {self.welcome.pid}) of feed {self._endpoint.name!r}"


def _nothing_is_left(*, wait: bool) -> bool:
    return True


class Standing(NamedTuple):
    """Where a trainer reads."""

    at: Cursor  # the position of the next row, or where it is looked for
    row: int  # its number in the trainer's epoch
    connection: FeedConnection  # the connection it comes on
    next_item: int  # index on that connection of the block that may hold it
