"""The next cycle of a stream, which is put together in a thread while the one before is given."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from penstock.contracts import Bound, Ids, Lag, Log, LogRecords
from penstock.errors import PenstockError, SourceError

MOST_BYTES = 1 << 30
"""A cycle closes with so many, however few records they are."""
LOOK_S = 0.1
_AT_ONCE = 10_000


class Gathered(NamedTuple):
    """The records of a cycle, in the order of (partition, offset)."""

    begin: Bound
    end: Bound
    ids: Ids
    data: Sequence[bytes]

    @classmethod
    def of(cls, begin: Bound, end: Bound, parts: Iterable[LogRecords]) -> Gathered:
        """Put records in order, whatever order they came in."""
        numbers: list[int] = []
        found: list[bytes] = []
        for ids, data in parts:
            numbers += ids
            found += data
        ids = np.array(numbers, np.int64)
        if (ids[1:] < ids[:-1]).any():
            order = np.argsort(ids, kind="stable")
            places: list[int] = order.tolist()
            ids, found = ids[order], [found[i] for i in places]
        return cls(begin, end, ids, found)


class Gatherer:
    """Reads a log cycle by cycle, one ahead: while that is not taken, nothing more is read."""

    def __init__(self, log: Log, most: int, close_after_s: float) -> None:
        self._log = log
        self._most = most  # records of a full cycle
        self._close_after_s = close_after_s  # a cycle closes so long after its first record
        self.count = 0  # records of the cycle that is being put together
        self.lag = Lag(0, None, 0)
        self._measure_at = 0.0
        self._thread: threading.Thread | None = None
        self._begin = Bound()
        self._found: Gathered | Exception | None = None
        self._done, self._stops = threading.Event(), threading.Event()

    def take(self, begin: Bound, look: Callable[[], None]) -> Gathered:
        """Return the cycle that begins at a bound, and begin the next one; ``look`` is called while it waits."""
        if self._thread is None or self._begin != begin:
            self._start(begin)
        while not self._done.wait(LOOK_S):
            look()
        found = self._found
        if not isinstance(found, Gathered):
            self.stop()
            raise found or SourceError("a stream was read no more: its source was closed")
        self._start(found.end)
        return found

    def stop(self) -> None:
        """Read no more."""
        self._stops.set()
        if self._thread is not None:
            with suppress(RuntimeError):  # not started, as it was interrupted before
                self._thread.join()
        self._thread = None

    def _start(self, begin: Bound) -> None:
        self.stop()
        self._begin, self._found, self.count = begin, None, 0
        self._done, self._stops = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-stream", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            if self._log.at != self._begin:
                self._log.seek(self._begin)
            self._found = self._gathered()
        except Exception as error:  # raised where the cycle is taken
            self._found = error
        self._done.set()
        while not self._stops.wait(LOOK_S):
            self._measure()

    def _gathered(self) -> Gathered | None:
        parts: list[LogRecords] = []
        until, nbytes = float("inf"), 0
        while not self._stops.is_set() and self.count < self._most and nbytes < MOST_BYTES:
            if (left_s := until - time.monotonic()) <= 0:
                break
            part = self._log.read(min(_AT_ONCE, self._most - self.count), min(LOOK_S, left_s))
            self._measure()
            if not part.ids:
                continue
            if not parts:
                until = time.monotonic() + self._close_after_s
            parts.append(part)
            self.count += len(part.ids)
            nbytes += sum(map(len, part.data))
        return None if self._stops.is_set() else Gathered.of(self._begin, self._log.at, parts)

    def _measure(self) -> None:
        """Look how far the log's end is, now and then; what fails here fails where it is read."""
        if (began := time.monotonic()) < self._measure_at:
            return
        with suppress(PenstockError, OSError):
            self.lag = self._log.lag()
        now = time.monotonic()
        self._measure_at = now + max(1.0, 20 * (now - began))
