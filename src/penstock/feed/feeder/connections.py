"""A feeder's sockets: accepts peers, receives their packets, sends without waiting, sees them go."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from penstock.feed.endpoint import credentials
from penstock.feed.wire import MAX_PACKET_BYTES
from penstock.linux.files import Descriptors
from penstock.linux.fork import close_in_children

_MOST_QUEUED = 8192
"""Most packets that wait for a peer. One that reads, or was stopped for a while, has far fewer: one a block."""


class Peer:
    """One peer, to which sending never waits: what the kernel does not take stays queued, in order."""

    def __init__(self, connection: socket.socket, id: int, hello_until_s: float) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.id = id
        self.hello_until_s = hello_until_s
        """When it must have introduced itself, in seconds of the monotonic clock."""
        self.introduced = False  # whether it has introduced itself
        self.brought: int | None = None  # the descriptor that came with its newest packet, until it is introduced
        self._came = Descriptors()
        self.pid, self.uid = credentials(connection)
        self.queue: deque[bytes] = deque()
        close_in_children(connection)

    def send(self, packet: bytes, fds: Sequence[int] = ()) -> bool:
        """Send or queue one packet. False if the peer is gone, or too many are queued."""
        if self.queue:
            if len(self.queue) >= _MOST_QUEUED:
                return False
            self.queue.append(packet)
            return True
        try:
            if fds:
                socket.send_fds(self.connection, [packet], fds)
            else:
                self.connection.send(packet)
        except BlockingIOError:
            self.queue.append(packet)
        except OSError:
            return False
        return True

    def receive(self) -> bytes:
        """Return its next packet, empty if there will be none."""
        try:
            if self.introduced:
                return self.connection.recv(MAX_PACKET_BYTES)
            came = Descriptors()
            packet, fds = came.receive(self.connection, MAX_PACKET_BYTES, 1)
        except BlockingIOError:
            raise
        except ConnectionResetError:  # once, of a peer that left with packets unread: what it sent last comes next
            return self.receive()
        except OSError:
            return b""
        self._came.close()
        self._came, self.brought = came, fds[0] if fds else None
        return packet

    def introduce(self) -> None:
        """Note that it has introduced itself."""
        self.introduced = True
        self._drop_brought()

    def close(self) -> None:
        """Close the connection, and what came with it."""
        self.connection.close()
        self._drop_brought()

    def _drop_brought(self) -> None:
        self.brought = None
        self._came.close()

    def end(self) -> None:
        """Shut the connection down; ``poll_once`` then sees its end."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def send_last(self, packet: bytes) -> None:
        """Send a packet in place of all that is queued; the connection is closed next.

        What the peer has not read fills at most the usual send buffer. Linux
        doubles the size it is asked for, which makes room for this packet; the
        peer reads it whenever it comes back, even after the connection's end.
        """
        self.queue.clear()
        with suppress(OSError):
            usual = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, usual)
            self.connection.send(packet)

    def flush(self) -> bool:
        """Send what the kernel takes of the queue. False if the peer is gone."""
        while self.queue:
            try:
                self.connection.send(self.queue[0])
            except BlockingIOError:
                return True
            except OSError:
                return False
            self.queue.popleft()
        return True


_READ = select.EPOLLIN | select.EPOLLHUP | select.EPOLLRDHUP
_PACKETS_A_TURN = 64
"""Packets received from one peer before the next peer's turn."""
HELLO_S = 5.0
"""A peer that has not introduced itself within this time is dropped."""


class Connections:
    """The peers of one listening socket, served by whoever calls ``poll_once``.

    Call every method but ``poll_once``, ``wake`` and ``close`` with ``lock`` held;
    ``poll_once`` takes it for the callbacks.
    """

    def __init__(
        self,
        listener: socket.socket,
        lock: threading.RLock,
        *,
        admit: Callable[[Peer], None],  # called when a peer has connected
        hear: Callable[[Peer, bytes], None],  # called with each packet of a peer
        gone: Callable[[Peer], None],  # called when a peer has been dropped, by its own end or by ours
    ) -> None:
        self.peers: dict[int, Peer] = {}  # by id
        self._lock = lock  # guards the peers, and whatever the callbacks touch
        self._admit, self._hear, self._gone = admit, hear, gone
        self._by_fd: dict[int, Peer] = {}
        self._strangers: deque[Peer] = deque()  # yet to introduce themselves, oldest first; some may have by now
        self._next_id = 0
        self._full = False
        self._listener = listener  # bound and listening
        self._listener.setblocking(False)
        self._woken, self._waker = socket.socketpair()
        for own in (listener, self._woken, self._waker):
            close_in_children(own)
        self._epoll = select.epoll()
        self._epoll.register(listener, select.EPOLLIN)
        self._epoll.register(self._woken, select.EPOLLIN)

    def poll_once(self, timeout_s: float | None) -> None:
        """Handle what has happened; wait for it up to the timeout."""
        for fd, events in self._epoll.poll(self._until_overdue_s(timeout_s)):
            with self._lock:
                if fd == self._listener.fileno():
                    self._accept()
                elif fd == self._woken.fileno():
                    self._woken.recv(64)
                elif (peer := self._by_fd.get(fd)) is not None:
                    self._serve(peer, events)
        with self._lock:
            self._drop_silent()

    def wake(self) -> None:
        """End a ``poll_once`` that waits in another thread."""
        if self._waker.fileno() >= 0:
            self._waker.send(b"x")

    def send(self, peers: Iterable[Peer], packet: bytes, fds: Sequence[int] = ()) -> None:
        """Send a packet after those already queued; ``poll_once`` drops a peer that is gone."""
        for peer in peers:
            if not peer.send(packet, fds):
                peer.end()
            elif peer.queue:
                self._epoll.modify(peer.connection, _READ | select.EPOLLOUT)

    def dismiss(self, peer: Peer, packet: bytes) -> None:
        """Send a last packet, in place of all that is queued, and drop the peer."""
        peer.send_last(packet)
        self.drop(peer)

    def drop(self, peer: Peer) -> None:
        """End the connection to a peer now."""
        if self.peers.pop(peer.id, None) is not None:
            fd = peer.connection.fileno()
            self._epoll.unregister(fd)
            peer.close()
            del self._by_fd[fd]
            if self._full:
                self._epoll.register(self._listener, select.EPOLLIN)
                self._full = False
            self._gone(peer)

    @property
    def all_sent(self) -> bool:
        return not any(peer.queue for peer in self.peers.values())

    def close(self) -> None:
        """Drop everybody and stop listening. Nobody may poll afterwards."""
        for peer in list(self.peers.values()):
            self.drop(peer)
        left = (peer.connection for peer in self._by_fd.values())  # by a drop that was interrupted
        for own in (*left, self._listener, self._woken, self._waker, self._epoll):
            own.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # no descriptor is left until a peer goes
            self._epoll.unregister(self._listener)
            self._full = True
            return
        self._adopt(connection)

    def _adopt(self, connection: socket.socket) -> Peer:
        peer = Peer(connection, self._next_id, time.monotonic() + HELLO_S)
        self._next_id += 1
        self._strangers.append(peer)
        self.peers[peer.id] = self._by_fd[connection.fileno()] = peer
        self._epoll.register(connection, _READ)
        self._admit(peer)
        return peer

    def _until_overdue_s(self, timeout_s: float | None) -> float | None:
        if not self._strangers:
            return timeout_s
        left_s = max(0.0, self._strangers[0].hello_until_s - time.monotonic())
        return left_s if timeout_s is None else min(timeout_s, left_s)

    def _drop_silent(self) -> None:
        now = time.monotonic()
        while self._strangers and self._strangers[0].hello_until_s <= now:
            peer = self._strangers.popleft()
            if peer.id in self.peers and not peer.introduced:
                self._receive(peer)  # if this process was stopped meanwhile, its hello may be here unread
            if peer.id in self.peers and not peer.introduced:
                self.drop(peer)

    def _serve(self, peer: Peer, events: int) -> None:
        if events & select.EPOLLOUT:
            if not peer.flush():
                peer.end()
                events |= _READ  # what it sent last, and its end
            elif not peer.queue:
                self._epoll.modify(peer.connection, _READ)
        if events & _READ:
            self._receive(peer)

    def _receive(self, peer: Peer) -> None:
        for _ in range(_PACKETS_A_TURN):
            try:
                packet = peer.receive()
            except BlockingIOError:
                return
            if not packet:
                self.drop(peer)
                return
            self._hear(peer, packet)
            if peer.id not in self.peers:
                return
