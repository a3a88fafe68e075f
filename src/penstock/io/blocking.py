"""A queue over blocking calls: threads that each wait for one."""

from __future__ import annotations

import errno
import threading
from abc import ABC, abstractmethod
from queue import SimpleQueue

import numpy as np

from penstock.contracts import Opened
from penstock.io.queue import Reads, Results


class BlockingQueue(ABC):
    """A mechanism whose reads each block a thread; threads are started as reads need them.

    Args:
        mech: The mechanism's name.
        depth: Most reads that may be queued.
        threads: Most reads under way at once; fewer where the system gives no more threads.
    """

    alignment = 1

    def __init__(self, mech: str, depth: int, threads: int) -> None:
        self.mech = mech
        self.depth = depth
        self._limit = threads
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
        """Read in any thread, waiting; return how many bytes came.

        Raises:
            OSError: the read failed; ``strerror`` is the reason.
        """

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
