"""What a keeper and the process that started it exchange: an assignment, then packets."""

from __future__ import annotations

import json
import os
import select
from collections import deque
from contextlib import suppress
from io import FileIO
from typing import Any, NamedTuple


class Assignment(NamedTuple):
    """A run, as its keeper is to start it."""

    id: str  # its key in the store
    store: str  # folder of the store
    folder: str  # the run's folder in it
    command: list[str]  # the program and its arguments
    directory: str  # its working directory
    environment: dict[str, str]  # all its environment variables
    path: list[str]  # where Python finds the store's modules
    time_limit_s: float | None = None  # seconds after which it is ended
    orphans: str = "end"  # what becomes of the run if what started it disappears: "end" or "keep"
    mps: str = ""  # pipe directory of the MPS daemon that it is a client of; empty for none
    merged: bool = False
    """Whether standard output and error are one pipe, so that the order of what is printed to both stays."""
    terminal: tuple[bool, bool, bool] = (False, False, False)
    """Which of descriptors 0 to 2 are to be a terminal of its own."""
    size: tuple[int, int] = (0, 0)  # columns and lines of that terminal

    def to_file(self, file: FileIO) -> None:
        """Write the assignment into a file, and go back to its start."""
        file.write(json.dumps(self._asdict()).encode())
        file.seek(0)

    @classmethod
    def from_file(cls, fd: int) -> Assignment:
        """Read an assignment, and close its descriptor."""
        with open(fd) as file:
            return cls(**json.load(file))


CHUNK_BYTES = 1 << 16
ENDED_LINK = "ended"
"""In a run's folder, a link to its status and exit code, where a full disk had no room for its record."""
MOST_WAITING = 16


class Link:
    """A keeper's end of a sequenced socket.

    It receives what is typed (``i`` and the bytes), signals and sizes of the terminal (JSON). It sends the output
    (``1`` or ``2`` and the bytes) and reports (JSON). What the other side does not take yet waits here.
    """

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        os.set_blocking(fd, False)
        self.fd: int | None = fd  # the socket; None once the other side has disappeared
        self._waiting: deque[bytes] = deque()

    @property
    def full(self) -> bool:
        """Whether the other side is slow: nothing more should be sent for now."""
        return len(self._waiting) >= MOST_WAITING

    @property
    def idle(self) -> bool:
        """Whether all was taken, or nobody is there to take it."""
        return not self._waiting

    def register(self, poll: select.poll) -> None:
        """Poll for what there is to do here."""
        if self.fd is not None:
            poll.register(self.fd, select.POLLIN | (select.POLLOUT if self._waiting else 0))

    def send(self, packet: bytes) -> None:
        """Send a packet, as soon as there is room for it."""
        if self.fd is not None:
            self._waiting.append(packet)
            self.flush()

    def report(self, **words: Any) -> None:
        """Send a report."""
        self.send(json.dumps(words).encode())

    def flush(self) -> None:
        """Send what waits, as far as there is room."""
        assert self.fd is not None
        try:
            while self._waiting:
                os.write(self.fd, self._waiting[0])
                self._waiting.popleft()
        except BlockingIOError:
            return
        except OSError:  # nobody is there; ``receive`` notices
            self._waiting.clear()

    def receive(self) -> bytes | None:
        """Return a packet, if there is one; an empty one, once, when the other side has disappeared."""
        assert self.fd is not None
        packet = b""
        with suppress(ConnectionError):
            try:
                packet = os.read(self.fd, 2 * CHUNK_BYTES)
            except BlockingIOError:
                return None
        if not packet:
            os.close(self.fd)
            self.fd = None
            self._waiting.clear()
        return packet
