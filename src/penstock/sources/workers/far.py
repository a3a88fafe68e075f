"""The far side of a pool: one process that does several tasks as a batch, as on a GPU, where workers are too few.

Each side is given what it is expected to do before the other one would, by how long tasks took of late, so that
nobody waits for what the slower side holds: ``docs/decisions/0039-a-far-side.md`` has what a fixed rule costs.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import struct
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any, NamedTuple

from penstock.basics.terminal import say
from penstock.sources.workers.process import CANNOT_START, ONE_THREAD, SMALL_BYTES, Worker, start_process

BATCH = 4
"""Tasks that it does as one: 128 rows, where parts have 32."""
_BATCHES = 4
_MOST_DEATHS = 2
_HANGS_S = 10.0
_STOPPED_S = 1.0
"""Who looks so much later may have been stopped, as what it waits for: by Ctrl-Z, or a machine that froze."""
_STARTS_S = 120.0
"""It imports much, maybe from a disk that is busy."""
_TIMEOUT = struct.pack("ll", int(_HANGS_S) // 2, 0)
_WEIGHT = 1 / 8
_OLD = 32
"""A side that was given nothing for as long as so many of its tasks take is tried again."""


class FarSide(NamedTuple):
    """What a far side is."""

    module: str  # module whose ``main(fd)`` its process runs, which calls ``serve_batches``
    name: str  # in words
    share: float | None = None
    """For tests: the part of all tasks, picked by their names, that it alone is given; None for what is faster."""


class Standing(NamedTuple):
    """How a far side stands."""

    name: str
    is_started: bool  # whether it has a process
    is_ready: bool  # whether that can be given tasks
    deaths: int  # of its processes
    lost: str  # why it is left out; empty while it is not


class TaskTime:
    """How long a task took of late."""

    def __init__(self) -> None:
        self.s = 0.0
        self._at_s = -math.inf  # when that was measured

    def add(self, took_s: float) -> None:
        self.s += (max(took_s, 1e-6) - self.s) * (1 if self.is_old else _WEIGHT)
        self._at_s = monotonic()

    @property
    def is_old(self) -> bool:
        """Whether it may be otherwise now."""
        return monotonic() - self._at_s > _OLD * self.s


class Far:
    """A far side at work.

    It is lost at its second death, at an error of its own, or after ten seconds without an answer.
    """

    def __init__(self, side: FarSide) -> None:
        self._side = side
        self.worker: Worker | None = None
        self.is_ready = False  # whether its process can be given tasks
        self.lost = ""  # why it does nothing any more
        self.done = 0  # tasks that it did
        self.own: deque[int] = deque()  # tasks of its share that it does not have yet
        self._workers_time = TaskTime()
        self._time = TaskTime()  # of a task, in a batch
        self._batches: deque[int] = deque()  # sizes of those that it has
        self._left = 0  # tasks of the first of them that it has not done
        self._began_s = 0.0  # when it began that
        self._returned: set[int] = set()  # tasks that it had when it died: they are the workers' now
        self._deaths = 0
        self._late_s = -math.inf  # when somebody waited for a result
        self._hangs_s = math.inf  # when it counts as hung
        self._is_stuck = False  # whether it did not take a batch
        self._is_large = False  # whether batches are so large that it must be there to read them

    @property
    def capacity(self) -> int:
        """Tasks that can be under way for it."""
        return 0 if self.lost else _BATCHES * BATCH

    @property
    def is_asked(self) -> bool:
        """Whether it takes part: somebody waited for a result while a worker did a task."""
        return self.is_ready and monotonic() - self._late_s <= self._workers_time.s

    @property
    def standing(self) -> Standing:
        return Standing(self._side.name, self.worker is not None, self.is_ready, self._deaths, self.lost)

    def learn(self, took_s: float) -> None:
        """Take note of how long a worker's task took."""
        self._workers_time.add(took_s)

    def claims(self, number: int, task: object) -> bool:
        """Take a task for its share; return whether it did."""
        share = self._side.share
        if self.lost or share is None or zlib.crc32(str(task).encode()) >= share * 2**32:
            return False
        self.own.append(number)
        return True

    def spares(self, number: int, waiting: int) -> bool:
        """Whether a worker is not to take a task, as by then the far side has done all of those that wait."""
        if self._side.share is not None or self._workers_time.is_old or self.worker is None:
            return False
        if number in self._returned:
            return False
        return self._time.s * (len(self.worker.has) + waiting) < self._workers_time.s

    def late(self) -> None:
        """Take note that somebody waits for a result."""
        self._late_s = monotonic()

    def start(self, setup: bytes, files: Sequence[int]) -> None:
        """Start its process, if there is none."""
        if self.worker is not None or self.lost:
            return
        try:
            self.worker = Worker(*start_process(self._side.module, files, ONE_THREAD))
        except OSError as error:
            self._lose(f"its process cannot be started: {error.strerror}")
            return
        self._hangs_s = monotonic() + _STARTS_S
        _limit(self.worker.connection)
        with suppress(OSError):  # it has died, as the next wait finds
            self.worker.connection.send_bytes(setup)

    def batch(self, waiting: deque[int], under_way: int, workers: int) -> list[int]:
        """Take the tasks of its next batch, if it is to have one: of its share, or of those that wait.

        ``under_way`` is how many the workers have.
        """
        if self.worker is None or not self.is_ready or self._is_stuck:
            return []
        has = len(self.worker.has)
        if has > BATCH or (has and self._is_large):
            return []
        if self._side.share is not None:
            return [self.own.popleft() for _ in range(min(BATCH, len(self.own)))]
        able = [each for each in waiting if each not in self._returned]
        if self._time.is_old:
            most = 0 if has else 1
        else:
            behind_s = self._workers_time.s * max(1, (under_way + len(waiting)) / workers)
            most = min(BATCH, int(behind_s / self._time.s) - has)
        if most <= 0 or (has and len(able) < BATCH):
            return []
        # What is needed first, if it does that before a worker would; else what is needed last.
        chosen = able[:most] if self._time.s * (has + most) <= self._workers_time.s else able[-most:]
        for each in chosen:
            waiting.remove(each)
        return chosen

    def give(self, numbers: Sequence[int], messages: Sequence[bytes]) -> None:
        """Send it a batch."""
        if self.worker is None:
            return
        if not self.worker.has:
            self._began_s, self._left = monotonic(), len(numbers)
            self._hangs_s = self._began_s + _HANGS_S
        self._batches.append(len(numbers))
        self._is_large = sum(map(len, messages)) > SMALL_BYTES
        self.worker.take(numbers)
        try:
            self.worker.connection.send(messages)
        except BlockingIOError:  # it hangs, with half a message
            self._is_stuck = True
        except OSError:  # it has died, as the next wait finds
            pass

    @property
    def patience_s(self) -> float:
        """Seconds until it counts as hung."""
        return 0.0 if self._is_stuck else max(0.0, self._hangs_s - monotonic())

    def hear(self, learn: Callable[[int, bool, Any], None]) -> list[int]:
        """Pass an answer on; return the tasks that workers are to do, if it has died, failed, or hangs."""
        if self.worker is None:
            return []
        if self._is_stuck or not self.worker.connection.poll():  # nobody is here before its time
            limit_s = _HANGS_S if self.is_ready else _STARTS_S
            if not self._is_stuck and monotonic() > self._hangs_s + _STOPPED_S:
                self._hangs_s = monotonic() + limit_s
                return []
            return self._end(f"process {self.worker.pid} has not answered for {limit_s:.0f} s")
        try:
            number, done, result = self.worker.connection.recv()
        except Exception:  # its end, or what is no message
            return self._end()
        if number == CANNOT_START:
            return self._end(str(result))
        self.is_ready = True
        if number in self.worker.has:  # else it has answered twice
            self._count(self.worker, number)
            learn(number, done, result)
        self._hangs_s = monotonic() + _HANGS_S if self.worker.has else math.inf
        return []

    def forget(self) -> list[int]:
        """Forget what is to come; return the tasks of its share that it does not have yet."""
        own = [*self.own]
        self._late_s = -math.inf  # nobody waits for a result that workers would leave to it
        self.own.clear()
        self._returned.clear()
        return own

    def close(self) -> None:
        """End its process, and forget what it has."""
        self._kill()
        self.forget()

    def _count(self, worker: Worker, number: int) -> None:
        """Take note of a task that it has done."""
        worker.done(number)
        self.done += 1
        now_s, self._left = monotonic(), self._left - 1
        if not self._left:
            took_s, self._began_s = (now_s - self._began_s) / self._batches.popleft(), now_s
            self._left = self._batches[0] if self._batches else 0
            if not worker.is_new:  # a first batch takes what a library loads with it, too
                self._time.add(took_s)
            worker.is_new = False

    def _end(self, failed: str = "") -> list[int]:
        """End its process, for good if it ``failed`` or died before; return the tasks that it will not do."""
        how, returned = self._kill()
        self._returned.update(returned)
        self._deaths += 1
        if failed or self._deaths >= _MOST_DEATHS:
            self._lose(failed or f"{self._deaths} of its processes died: the last {how}")
            returned += self.forget()
        return returned

    def _lose(self, why: str) -> None:
        self.lost = why
        say(f"{self._side.name} is left out, and the workers do all: {why}")

    def _kill(self) -> tuple[str, list[int]]:
        """Return how its process ended, and the tasks that it had, which it cannot write any more."""
        worker, self.worker, self.is_ready, self._hangs_s = self.worker, None, False, math.inf
        self._batches.clear()
        self._is_stuck = False
        if worker is None:
            return "", []
        with suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)
        return worker.ended(), [*worker.has]


def _limit(connection: Connection[Any, Any]) -> None:
    """Have nobody wait for ever for a process that stops amid a message."""
    with socket.socket(fileno=os.dup(connection.fileno())) as its:
        for each in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            its.setsockopt(socket.SOL_SOCKET, each, _TIMEOUT)
