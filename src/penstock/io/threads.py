"""Reads by threads that each wait for one: ``preadv``, through the page cache or past it."""

from __future__ import annotations

import ctypes
import os

from penstock.contracts import Opened
from penstock.io.blocking import BlockingQueue
from penstock.io.files import direct_alignment, open_file


class ThreadQueue(BlockingQueue):
    """Reads by ``preadv`` in threads.

    Args:
        depth: Most reads that may be queued.
        threads: Most reads under way in the kernel.
        direct: Whether to bypass the page cache (O_DIRECT).
    """

    def __init__(self, depth: int, threads: int, *, direct: bool) -> None:
        super().__init__("direct" if direct else "posix", depth, threads)
        self._direct = direct
        self._fds: list[int] = []

    @property
    def path_taken(self) -> str:
        threads = f"{self._limit} thread{'s' * (self._limit != 1)}"
        return f"preadv, {'O_DIRECT' if self._direct else 'page cache'}, {threads}"

    def open(self, path: str) -> Opened:
        fd, nbytes = open_file(path, direct=self._direct)
        self._fds.append(fd)
        if self._direct:
            self.alignment = max(self.alignment, direct_alignment(fd))
        return Opened(fd, nbytes)

    def read(self, file: int, offset: int, nbytes: int, address: int) -> int:
        return os.preadv(file, [(ctypes.c_char * nbytes).from_address(address)], offset)

    def release(self) -> None:
        for fd in self._fds:
            os.close(fd)
