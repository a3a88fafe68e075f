"""Copies by several threads: one thread's copy takes a third of what memory can do, or less (decision 37)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue

import numpy as np

from penstock.contracts import ByteArray
from penstock.linux.cgroups import cores

LEAST_BYTES = 1 << 20
_PART_BYTES = 512 << 10
_MOST_THREADS = 4
_LEAST_CORES = 4
_LOOK_S = 0.01


class _Part:
    """Bytes that the first thread to come copies, unless the copy is broken off before."""

    def __init__(self, to: ByteArray, origin: ByteArray) -> None:
        self._to = to
        self._origin = origin
        self._open = [True]  # who takes that out copies
        self.is_helped = False
        """Whether a thread of the copier's may be writing."""

    def copy(self) -> None:
        with suppress(IndexError):
            self._open.pop()
            np.copyto(self._to, self._origin)

    def help(self) -> None:
        """Copy it as a thread of the copier's."""
        self.is_helped = True
        self.copy()
        self.is_helped = False

    def leave(self) -> None:
        """Have nobody begin it any more."""
        self._open.clear()


class Copier:
    """Copies bytes: those of a large block by several threads at once, the caller's among them."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or _usual_threads()
        self._others = list[threading.Thread]()
        self._queue = SimpleQueue[_Part | None]()
        self._ended = threading.Lock()
        """Released when a thread has done a part. Only parts tell: an interrupted caller looks again."""

    def copy(self, to: ByteArray, origin: ByteArray) -> None:
        """Copy ``origin`` to memory of its size; when it returns, or raises, no thread writes there any more."""
        if self._threads == 1 or origin.nbytes < LEAST_BYTES:
            to[:] = origin
            return
        while len(self._others) < self._threads - 1:
            thread = threading.Thread(target=self._help, name="penstock-copy", daemon=True)
            thread.start()
            self._others.append(thread)
        each = max(_PART_BYTES, -(-origin.nbytes // (2 * self._threads)))
        parts = [_Part(to[at : at + each], origin[at : at + each]) for at in range(0, origin.nbytes, each)]
        try:
            for part in parts:
                self._queue.put(part)
            for part in reversed(parts):  # whoever gets no core holds up nobody
                part.copy()
            self._wait_for(parts)
        except BaseException:  # an interrupt
            for part in parts:
                part.leave()
            self._wait_for(parts)
            raise

    def close(self) -> None:
        """End its threads."""
        self._queue.put(None)
        for thread in self._others:
            thread.join()
        self._others.clear()
        self._queue = SimpleQueue[_Part | None]()

    def _wait_for(self, parts: Sequence[_Part]) -> None:
        while any(part.is_helped for part in parts):
            self._ended.acquire(timeout=_LOOK_S)

    def _help(self) -> None:
        while part := self._queue.get():
            part.help()
            del part  # with its views
            with suppress(RuntimeError):  # it is released already
                self._ended.release()
        self._queue.put(None)  # for the others


def _usual_threads() -> int:
    """Return as many as leave half of the cores to what decodes and trains; one where there are few."""
    here = int(cores())
    return min(_MOST_THREADS, here // 2) if here >= _LEAST_CORES else 1
