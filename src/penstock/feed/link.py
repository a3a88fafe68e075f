"""A trainer's side of the socket: one connection to a feeder, its ring, and the blocks announced on it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import Any, TypeVar

from penstock.contracts import Cursor, Ring
from penstock.errors import (
    FeedEnded,
    FeederLost,
    PenstockError,
    ProtocolError,
    Refused,
    TrainerEvicted,
)
from penstock.feed import wire
from penstock.feed.arrived import Arrived, CycleEnded
from penstock.feed.directory import Place
from penstock.feed.failures import again, failure, not_found, refusal, silent
from penstock.feed.fork import close_in_children
from penstock.feed.peer import credentials
from penstock.feed.sense import Sense

OpenRing = Callable[[wire.Welcome, Sequence[int]], Ring]
"""Maps one of a feed's rings by its descriptor, which becomes the ring's."""

_RELEASE_TOGETHER = 16
_MOST_RINGS = 2
_T = TypeVar("_T")


class Link:
    """A connection to one feeder.

    Args:
        place: The feed.
        hello: What this trainer says of itself.
        open_ring: Maps a ring of the feed's.
        answer_s: How long to wait for the feeder's answer, in seconds; once admitted, a trainer waits for ever.

    Attributes:
        welcome: What the feeder said of itself.
        ring: The one that was mapped.
        sharing: Its name.
        stopped: The feed was ended on purpose.
        wait_s: Time spent waiting for blocks.
        latency_s: Publish to receipt of the newest block that was waited for.

    Raises:
        FeedNotFound: nobody serves the name.
        FeederSilent: its feeder does not answer.
        ProtocolError: its feeder's answer makes no sense.
        Refused: the feeder does not admit this trainer.
    """

    def __init__(self, place: Place, hello: wire.Hello, open_ring: OpenRing, answer_s: float) -> None:
        self.borrow = hello.borrow
        self.latency_s = 0.0
        self.wait_s = 0.0
        self._place = place
        self._arrived: deque[Arrived | CycleEnded | wire.Failed] = deque()
        self._released: deque[int] = deque()
        self._lent: Counter[int] = Counter()  # views live of these blocks
        # A view may die in another thread, or anywhere in this one: reentrant.
        self._lending = threading.RLock()
        self._failed: wire.Failed | None = None
        self._closed = False
        self._buffer = bytearray(wire.MAX_PACKET_BYTES)
        self._view = memoryview(self._buffer)
        self._starting = False
        self._ended: PenstockError | None = None
        self.stopped = False
        self._pid = os.getpid()
        try:
            self._socket = place.connect(answer_s)
        except TimeoutError:
            raise silent(place, answer_s) from None
        except OSError:
            raise not_found(place.name) from None
        close_in_children(self._socket)
        try:
            self.welcome, fds = self._introduce(hello, answer_s)
            self.ring, self.sharing = _opened(self.welcome, fds, open_ring)
        except BaseException:
            self._socket.close()
            raise

    def start(self, at: Cursor | None, epoch: int, epoch_start: Cursor) -> Cursor:
        """Begin to read at a position, or at the next segment; returns where.

        Blocks that were announced before are released, those after it wait in
        order. It may wait for the other ranks of a group.
        """
        self._let_go()
        self.flush()
        if self._failed is not None:
            raise failure(self._failed)
        cycle, sample = (None, 0) if at is None else at
        self._send(wire.Start(cycle, sample, epoch, *epoch_start))
        self._starting = True
        while True:
            message = self._receive(wait=True)
            if isinstance(message, wire.Started):
                self._starting = False
                return Cursor(message.cycle, message.sample)
            self._take(message)

    def epoch(self, epoch: int, start: Cursor) -> None:
        """Tell the feeder which epoch this trainer is in, and where that began."""
        self._send(wire.Epoch(epoch, *start))

    def next(self) -> Arrived | CycleEnded:
        """The next block, waiting for it if need be.

        Raises:
            SourceError: the source failed at this point.
            FeederLost, TrainerEvicted, FeedEnded: there will be no more.
        """
        if not self._arrived:
            self._wait()
        first = self._arrived[0]
        if isinstance(first, wire.Failed):
            raise failure(first)
        return self._arrived.popleft()  # type: ignore[return-value]

    @property
    def has_arrived(self) -> bool:
        """Whether ``next`` need not wait."""
        return bool(self._arrived)

    def present(self) -> list[Arrived]:
        """The blocks that ``next`` gives without waiting."""
        while (message := self._receive(wait=False)) is not None:
            self._take(message)
        return list(takewhile(lambda item: isinstance(item, Arrived), self._arrived))  # type: ignore[arg-type]

    def poll(self) -> None:
        """Hear what has come in, without waiting.

        After a copy out of the ring this tells whether the bytes were still
        this trainer's: a feeder announces an eviction before it writes again.

        Raises:
            TrainerEvicted, FeederLost: this trainer's blocks are no longer safe, or no more will come.
        """
        while (message := self._receive(wait=False)) is not None:
            self._take(message)
        if isinstance(self._ended, (TrainerEvicted, FeederLost)):
            raise again(self._ended)

    def release(self, number: int) -> None:
        """A block is needed no more."""
        if os.getpid() != self._pid:
            return
        self._released.append(number)
        if len(self._released) >= _RELEASE_TOGETHER:
            self.flush()

    def _lend(self, number: int) -> Callable[[], None]:
        """A block may be viewed from now on; what to call when the last view has died.

        That may be in any thread, in the middle of any statement.
        """
        with self._lending:
            self._lent[number] += 1

        def ended() -> None:
            if os.getpid() != self._pid:
                return
            with self._lending:
                self._lent[number] -= 1
                if not self._lent[number]:
                    del self._lent[number]
                self.release(number)
                self.flush()
                if self._closed and not self._lent:
                    self._socket.close()

        return ended

    def close(self) -> None:
        """Read no more; the connection ends when the last view of its blocks dies, or now."""
        if self._closed or os.getpid() != self._pid:
            return
        self._let_go()
        self.ring.close()
        with self._lending:
            self.flush()
            self._closed = True
            if self._lent:
                self._send(wire.Rest(list(self._lent.elements())))
            else:
                self._socket.close()

    def _let_go(self) -> None:
        for block in self._arrived:
            if isinstance(block, Arrived):
                block.release()
        self._arrived.clear()

    def _introduce(self, hello: wire.Hello, answer_s: float) -> tuple[wire.Welcome, list[int]]:
        pid, uid = credentials(self._socket)
        if uid != os.getuid():
            raise Refused(f"feed {self._place.name!r} is served by uid {uid}, you are uid {os.getuid()}")
        self._sense = Sense(self._place.name, pid)
        self._socket.settimeout(answer_s)
        try:
            self._socket.send(wire.encode(hello))
            packet, fds, _, _ = _despite_reset(
                lambda: socket.recv_fds(self._socket, wire.MAX_PACKET_BYTES, _MOST_RINGS, socket.MSG_CMSG_CLOEXEC)
            )
        except TimeoutError:
            raise silent(self._place, answer_s) from None
        except OSError:
            raise not_found(self._place.name) from None
        if not packet:  # it was about to end
            raise not_found(self._place.name)
        self._socket.settimeout(None)
        try:
            message = self._sense.greeting(packet, fds)
            if isinstance(message, wire.Rejected):
                raise refusal(self._place.name, message)
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        return message, fds

    def _wait(self) -> None:
        self.flush()
        began = time.monotonic()
        while not self._arrived:
            if self._ended is not None:
                raise again(self._ended)
            message = self._receive(wait=True)
            if isinstance(message, wire.Block):
                self.latency_s = (time.monotonic_ns() - message.published_ns) / 1e9
            self._take(message)
        self.wait_s += time.monotonic() - began

    def _receive(self, *, wait: bool) -> Any:
        """The next message; None if there is none and it is not waited for, or if there will be none."""
        if isinstance(self._ended, ProtocolError):
            raise again(self._ended)
        if self._ended is not None and not wait:
            return None
        flags = 0 if wait else socket.MSG_DONTWAIT
        try:
            size = _despite_reset(lambda: self._socket.recv_into(self._buffer, 0, flags))
        except BlockingIOError:
            return None
        except OSError:
            size = 0
        if size == 0:
            if self._ended is None:
                self._ended = self._lost("died")
            if wait:
                raise again(self._ended)
            return None
        try:
            return self._sense.message(self._view[:size])
        except ProtocolError as error:
            self._ended = again(error)
            raise

    def _take(self, message: Any) -> None:
        if isinstance(message, wire.Block):
            block = self._arrival(message)
            if self._starting:  # announced before the feeder heard of the new start
                block.release()
            else:
                self._arrived.append(block)
        elif isinstance(message, wire.CycleEnd):
            if not self._starting:
                self._arrived.append(CycleEnded(message.cycle))
        elif isinstance(message, wire.Failed):
            self._arrived.append(message)
            self._failed = message
            if self._starting:
                raise failure(message)
        elif isinstance(message, wire.Evicted):
            self._ended = TrainerEvicted(message.message)
        elif isinstance(message, wire.Rejected):
            self._ended = refusal(self._place.name, message)
        elif isinstance(message, wire.Bye):
            self.stopped = True
            self._ended = (
                self._lost(message.reason)
                if message.reason
                else FeedEnded(f"feed {self._place.name!r} has ended: it has given every trainer its epochs")
            )

    def _arrival(self, message: wire.Block) -> Arrived:
        assert self._sense.layout is not None
        end = max(map(sum, zip(message.leaf_offsets, message.leaf_bytes, strict=True)), default=0)
        done = None
        if self.borrow:
            # Every view of a leaf keeps `memory` alive: the block is released
            # when the last of them has died, and the block's own.
            memory = self.ring.lend(message.offset, end, self._lend(message.number))
        else:
            memory = self.ring.readable(message.offset, end)
            done = partial(self.release, message.number)
        return Arrived(message, memory, self._sense.layout, self._sense.nodes, done, self._sense)

    def _lost(self, reason: str) -> FeederLost:
        log = self._place.sweep() if reason == "died" else ""
        return FeederLost(
            f"the feeder (process {self.welcome.pid}) of feed {self._place.name!r} {reason}"
            + (f"; the end of its log: {log}" if log else "")
            + (". To go on, start the feed again and load the last state_dict()" if self.stopped else "")
        )

    def _send(self, message: wire.FromTrainer) -> None:
        with suppress(OSError):  # the feeder is gone, which the next receive tells with its reason
            self._socket.send(wire.encode(message))

    def flush(self) -> None:
        """Tell the feeder of all releases; they are told together while blocks keep coming."""
        blocks: list[int] = []
        while self._released:
            try:
                blocks.append(self._released.popleft())
            except IndexError:  # another thread's view died
                break
        if blocks:
            self._send(wire.Release(blocks))


def _opened(welcome: wire.Welcome, fds: list[int], open_ring: OpenRing) -> tuple[Ring, str]:
    """The ring that this trainer reads, and its name; the descriptors of the others are closed."""
    unused = set(fds)
    try:
        ring = open_ring(welcome, fds)
        unused.remove(ring.fd)
        return ring, welcome.rings[fds.index(ring.fd)]
    finally:
        for fd in unused:
            os.close(fd)


def _despite_reset(receive: Callable[[], _T]) -> _T:
    """Receive, although the feeder may have closed its end before it read all of ours.

    Linux tells that first, and what the feeder said last after it.
    """
    try:
        return receive()
    except ConnectionResetError:
        return receive()
