"""The lowest level of a mechanism: plain reads, many at once; here by threads that each wait for one."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from queue import SimpleQueue
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np

from penstock.contracts import Numbers, Opened
from penstock.io.files import direct_alignment, open_file

CPU_SERVED = "CPU-served"
"""Says in ``path_taken`` that a thread served the queues of ``"gpu"``, not a disk."""


class Reads(NamedTuple):
    """Reads to begin; every field has one entry per read."""

    ids: Numbers  # numbers below the queue's depth, none of them under way
    files: Numbers  # files as ``Queue.open`` numbered them
    offsets: Numbers  # offsets in the file, multiples of the queue's alignment
    nbytes: Numbers  # bytes to read, multiples of the queue's alignment
    addresses: Numbers  # addresses in this process or on the device, multiples of the queue's alignment


class Results(NamedTuple):
    """Reads that are done."""

    ids: Numbers  # ids of the reads
    nbytes: Numbers  # how many bytes came, or the negative error number
    reasons: Mapping[int, str] = MappingProxyType({})
    """By id, why a read failed, if the storage gives more than a number."""


class Queue(Protocol):
    """A mechanism's plain reads; ``QueueReader`` repeats, cuts and aligns them."""

    @property
    def mech(self) -> str: ...

    @property
    def depth(self) -> int: ...

    @property
    def alignment(self) -> int:
        """Unit of offsets, sizes and addresses, in bytes; 1 if any will do.

        A power of two. It may rise when a file is opened that needs more.
        """
        ...

    @property
    def path_taken(self) -> str: ...

    def open(self, path: str) -> Opened:
        """Open a file that has not been opened here before."""
        ...

    def push(self, reads: Reads) -> None:
        """Begin to read; never more than ``depth`` are under way."""
        ...

    def pop(self, at_least: int) -> Results:
        """Wait for ``at_least`` results; that many reads must be under way."""
        ...

    def close(self) -> None:
        """Close all files, when nothing is under way any more."""
        ...


class BlockingQueue(ABC):
    """A mechanism whose reads each block a thread; threads are started as reads need them."""

    alignment = 1

    def __init__(self, mech: str, depth: int, threads: int) -> None:
        self.mech = mech  # the mechanism's name
        self.depth = depth  # most reads that may be queued
        self._limit = threads  # most reads under way at once; fewer where the system gives no more threads
        self._under_way = 0
        self._asked: SimpleQueue[tuple[int, int, int, int, int] | None] = SimpleQueue()
        self._came: SimpleQueue[tuple[int, int, str]] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._start()

    @property
    @abstractmethod
    def path_taken(self) -> str: ...

    @abstractmethod
    def open(self, path: str) -> Opened:
        """Open a file; see ``Queue``."""

    @abstractmethod
    def read(self, file: int, offset: int, nbytes: int, address: int) -> int:
        """Read in any thread, waiting; return how many bytes came."""

    @abstractmethod
    def release(self) -> None:
        """Close what was opened; called when no thread is left."""

    def push(self, reads: Reads) -> None:
        self._under_way += len(reads.ids)
        while len(self._threads) < min(self._limit, self._under_way):
            try:
                self._start()
            except RuntimeError:
                self._limit = len(self._threads)
        for read in zip(*(field.tolist() for field in reads), strict=True):
            self._asked.put(read)

    def pop(self, at_least: int) -> Results:
        came = [self._came.get() for _ in range(at_least)]
        while not self._came.empty():
            came.append(self._came.get())
        self._under_way -= len(came)
        ids, nbytes, reasons = zip(*came, strict=True)
        return Results(
            np.array(ids, np.int64),
            np.array(nbytes, np.int64),
            {i: reason for i, reason in zip(ids, reasons, strict=True) if reason},
        )

    def close(self) -> None:
        for _ in self._threads:
            self._asked.put(None)
        for thread in self._threads:
            thread.join()
        self.release()

    def _start(self) -> None:
        name = f"penstock-{self.mech}-{len(self._threads)}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _serve(self) -> None:
        while (asked := self._asked.get()) is not None:
            i, file, offset, nbytes, address = asked
            reason = ""
            try:
                came = self.read(file, offset, nbytes, address)
            except OSError as error:
                came, reason = -(error.errno or errno.EIO), error.strerror or ""
            except BaseException as error:  # a library's panic too: the waiting reader must hear of it
                came, reason = -errno.EIO, repr(error)
            self._came.put((i, came, reason))


class ThreadQueue(BlockingQueue):
    """Reads by ``preadv`` in threads."""

    def __init__(self, depth: int, threads: int, *, direct: bool) -> None:
        super().__init__("direct" if direct else "posix", depth, threads)
        self._direct = direct  # whether to bypass the page cache (O_DIRECT)
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
