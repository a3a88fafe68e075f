"""A trainer's socket: how it is introduced, what outlives its connection, and what a lost feeder raises."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from penstock.errors import Refused
from penstock.feed import wire
from penstock.feed.endpoint import Endpoint, credentials
from penstock.feed.trainer.error_texts import not_found, refusal, silent
from penstock.feed.trainer.validation import MOST_RINGS, MessageValidator
from penstock.linux.files import Descriptors


def of_the_system(error: OSError) -> bool:
    """Whether a system call raised it: an alarm's handler may raise a bare TimeoutError, an OSError too."""
    return error.errno is not None


def despite_reset(receive: Callable[[], Any]) -> Any:
    """Receive, although the feeder may have closed its end with packets of ours unread.

    Linux reports that first, and then delivers what the feeder sent last.
    """
    try:
        return receive()
    except ConnectionResetError:
        return receive()


def introduced(
    connected: socket.socket, endpoint: Endpoint, hello: wire.Hello, answer_s: float, descriptors: Descriptors
) -> tuple[MessageValidator, wire.Welcome, list[int]]:
    """Send the hello; return what checks the feeder's messages, its welcome, and the rings that came with that."""
    pid, uid = credentials(connected)
    if uid != os.getuid():
        raise Refused(f"feed {endpoint.name!r} is served by uid {uid}, you are uid {os.getuid()}")
    validator = MessageValidator(endpoint.name, pid, selects=hello.selected is not None)
    connected.settimeout(answer_s)
    try:
        if hello.selected is None:
            connected.send(wire.encode(hello))
        else:
            socket.send_fds(connected, [wire.encode(hello)], [hello.selected.fd])
        packet, fds = despite_reset(lambda: descriptors.receive(connected, wire.MAX_PACKET_BYTES, MOST_RINGS))
    except TimeoutError:
        raise silent(endpoint, answer_s) from None
    except OSError:
        raise not_found(endpoint.name) from None
    if not packet:  # it was about to end
        raise not_found(endpoint.name)
    connected.settimeout(None)
    message = validator.greeting(packet, fds)
    if isinstance(message, wire.Rejected):
        raise refusal(endpoint.name, message)
    return validator, message, fds


class Line:
    """What loans know of a connection, which they may outlive.

    Nothing leads from here to the connection: one that is given up half made goes at once, and not when Python
    looks for cycles.
    """

    def __init__(self, connected: socket.socket) -> None:
        self.wait_s = 0.0
        self.left_out = 0  # rows of cycles of unknown length that filled no step
        self.is_closed = False
        self._socket = connected
        self._pid = os.getpid()

    @property
    def is_ours(self) -> bool:
        """Whether this process has connected it, and not the one that it was forked from."""
        return os.getpid() == self._pid

    def send(self, message: wire.FromTrainer) -> None:
        try:
            self._socket.send(wire.encode(message))
        except OSError as error:  # the feeder is gone: the next receive raises that, with its reason
            if not of_the_system(error):
                raise

    def send_releases(self, ordinals: list[int]) -> None:
        if self.is_ours:
            self.send(wire.Release(ordinals, int(self.wait_s * 1e3), self.left_out))

    def leave_out(self, rows: int) -> None:
        """Count rows that filled no step; the feeder hears of them with the next release."""
        self.left_out += rows

    def loans_ended(self) -> None:
        if self.is_closed and self.is_ours:
            self._socket.close()
