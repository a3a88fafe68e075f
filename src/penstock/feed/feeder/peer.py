"""A feeder's socket to one peer: who it is, and packets that wait to be sent."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from penstock.feed.endpoint import credentials
from penstock.feed.wire import MAX_PACKET_BYTES
from penstock.linux.files import Descriptors
from penstock.linux.fork import close_in_children

_MOST_QUEUED = 8192
"""Most packets that wait for a peer. One that reads, or was stopped for a while, has far fewer: one a block."""


class Peer:
    """One peer, to which sending never waits: what the kernel does not take stays queued, in order.

    Args:
        connection: Its socket.
        id: Its number.
        hello_until_s: When it must have said who it is, in seconds of the monotonic clock.

    Attributes:
        introduced: Whether it has said who it is.
        brought: The descriptor that came with its newest packet, until it is introduced.
    """

    def __init__(self, connection: socket.socket, id: int, hello_until_s: float) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.id = id
        self.hello_until_s = hello_until_s
        self.introduced = False
        self.brought: int | None = None
        self._came = Descriptors()
        self.pid, self.uid = credentials(connection)
        self.queue: deque[bytes] = deque()
        self.layout: object = None  # of the block that was last announced to it
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
        """Return its next packet, empty if there will be none.

        Raises:
            BlockingIOError: none has come.
        """
        try:
            if self.introduced:
                return self.connection.recv(MAX_PACKET_BYTES)
            came = Descriptors()
            packet, fds = came.receive(self.connection, MAX_PACKET_BYTES, 1)
        except BlockingIOError:
            raise
        except OSError:
            return b""
        self._came.close()
        self._came, self.brought = came, fds[0] if fds else None
        return packet

    def introduce(self) -> None:
        """Note that it has said who it is."""
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
