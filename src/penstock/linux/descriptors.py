"""Descriptors and files that are opened and closed so that no exception comes between that and the note of it.

Ctrl-C is raised between two calls. A descriptor that is open, and that nobody has noted yet, would stay open; a
number that is noted, and closed already, may be that of another file when it is closed again.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterable
from io import FileIO
from itertools import chain, tee
from operator import itemgetter
from typing import Any

from penstock.linux.when_gone import when_gone

_DESCRIPTOR = struct.Struct("i")


def opened(mode: str, opens: Callable[..., int], *arguments: Any) -> FileIO:
    """Open a file by a function of C's."""
    return next(map(FileIO, map(opens, *zip(arguments, strict=True)), (mode,)))


class Descriptors:
    """Descriptors that this process has opened; each is closed once, at the latest when nothing refers to this.

    One call into C opens a descriptor and keeps it, another forgets it and closes it.
    """

    def __init__(self) -> None:
        self._fds: list[int] = []
        when_gone(self, map(os.close, self._fds))

    def open(self, opens: Callable[..., int], *arguments: Any) -> int:
        """Open a descriptor by a function of C's; ``int`` takes over one that is open."""
        return self._keep(map(opens, *zip(arguments, strict=True)))[0]

    def receive(self, connection: socket.socket, most_bytes: int, most: int) -> tuple[bytes, list[int]]:
        """Receive a packet and the descriptors that come with it, as ``socket.recv_fds`` does."""
        room = socket.CMSG_SPACE(most * _DESCRIPTOR.size)
        flags = socket.MSG_CMSG_CLOEXEC
        packets, again = tee(map(connection.recvmsg, (most_bytes,), (room,), (flags,)))
        data = map(itemgetter(2), chain.from_iterable(map(itemgetter(1), packets)))
        fds = self._keep(map(itemgetter(0), chain.from_iterable(map(_DESCRIPTOR.iter_unpack, data))))
        return next(again)[0], fds

    def close(self) -> None:
        while self._fds:
            next(map(os.close, map(self._fds.pop, (-1,))))

    def _keep(self, opening: Iterable[int]) -> list[int]:
        kept = len(self._fds)
        self._fds.extend(opening)
        return self._fds[kept:]
