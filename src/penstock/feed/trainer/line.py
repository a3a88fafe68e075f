"""A trainer's socket: what outlives its connection, and what it raises when its feeder is gone."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from penstock.feed import wire


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


class Line:
    """What loans know of a connection, which they may outlive.

    Nothing leads from here to the connection: one that is given up half made goes at once, and not when Python
    looks for cycles.
    """

    def __init__(self, connected: socket.socket) -> None:
        self.wait_s = 0.0
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
            self.send(wire.Release(ordinals, int(self.wait_s * 1e3)))

    def loans_ended(self) -> None:
        if self.is_closed and self.is_ours:
            self._socket.close()
