"""Workers that are processes of this machine: each is a new Python without torch, and does one task after another.

They are not forked: a process that has used OpenCV leaves its children locks that nobody opens.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any, Generic, TypeVar

from penstock.basics.pickling import FilePickler
from penstock.errors import BadSetting, SourceError
from penstock.sources.workers.far import Far, FarSide
from penstock.sources.workers.process import CANNOT_START, ONE_THREAD, QUEUED, SMALL_BYTES, Worker, start_process

Task = TypeVar("Task")
Result = TypeVar("Result")

_MOST_DEATHS = 3
_FINISH_S = 10.0


class WorkerPool(Generic[Task, Result]):
    """Processes that do tasks.

    One that dies is replaced, and its tasks are done again by others; only a task at which three died is an error.
    They end with this process. A far side takes part while somebody waits for results.
    """

    def __init__(self, count: int, module: str, far: FarSide | None = None) -> None:
        self._count = count  # how many processes
        self._module = module  # module whose ``main(fd)`` they run, which calls ``serve``
        self._setup = b""
        self._files: Sequence[int] = ()
        self._pid = os.getpid()
        self._broken: SourceError | None = None  # why processes cannot start
        self._vain = 0  # processes that died without a task, since the last result
        self._workers: list[Worker] = []
        self.far = None if far is None else Far(far)
        self._waiting: deque[int] = deque()  # numbers of tasks that no worker has
        self._tasks: dict[int, tuple[Task, bytes]] = {}  # those that are not done, and how they are sent
        self._deaths: dict[int, int] = {}
        self._results: dict[int, tuple[bool, Any]] = {}

    @property
    def capacity(self) -> int:
        """Tasks that can be under way without one waiting for a process."""
        return self._count * QUEUED + (0 if self.far is None else self.far.capacity)

    def prepare(self, setup: tuple[Any, ...], files: Sequence[int]) -> None:
        """Tell what processes that start from now on are given: arguments for ``serve``, and open files."""
        try:
            self._setup = FilePickler.pickled(setup)
        except Exception as error:  # whatever a user's object raises
            raise BadSetting(
                f"decode= cannot be sent to the worker processes: {error}. Make it a function that holds no "
                "locks, files or connections"
            ) from None
        self._files = files

    def submit(self, number: int, task: Task) -> None:
        """Have a task done, whose result is asked for by ``number``."""
        self._tasks[number] = task, pickle.dumps((number, task))
        if self.far is None or not self.far.claims(number, task):
            self._waiting.append(number)
        self._hand_out()

    def result(self, number: int) -> Result:
        """Wait for a task's result."""
        while number not in self._results:
            if self._broken is not None:
                raise self._broken
            if self.far is not None:
                self._hand_over(self.far)
            self._hear(math.inf)
            if self.far is not None:
                self.far.late()
        done, result = self._results.pop(number)
        if not done:
            raise result
        return result

    def settle(self) -> None:
        """Give up the tasks that have not begun, and wait for the others: after that nothing is written.

        Processes that take longer than ten seconds are killed.
        """
        try:
            for number in [*self._waiting, *([] if self.far is None else self.far.forget())]:
                del self._tasks[number]
            self._waiting.clear()
            while self._tasks:
                if self._broken is not None or not self._hear(_FINISH_S):
                    self.close()
        except BaseException:  # another Ctrl-C
            self.close()
            raise
        self._results.clear()
        self._deaths.clear()

    def close(self) -> None:
        """End the processes, if they are this process's; a forked child's copy only forgets them."""
        if os.getpid() != self._pid:
            self._workers.clear()
            self.far = None
        if self.far is not None:
            self.far.close()
        for worker in self._workers:
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
        for worker in self._workers:
            worker.ended()
        self._workers.clear()
        self._tasks.clear()
        self._waiting.clear()
        self._results.clear()
        self._deaths.clear()
        self._broken, self._vain = None, 0

    def _hand_out(self) -> None:
        """Give tasks to the processes that have the fewest."""
        while len(self._workers) < self._count:
            self._workers.append(self._started())
        far = self.far if self.far is not None and self.far.is_asked else None
        most = QUEUED if far is None else 1  # as what waits behind another task keeps the far side waiting
        while self._waiting:
            worker, number = min(self._workers, key=lambda each: len(each.has)), self._waiting[0]
            if len(worker.has) >= most or (far is not None and far.spares(number, len(self._waiting))):
                return
            _, message = self._tasks[number]
            # One that is at work reads no large message, and the process that sends it would wait.
            if worker.has and len(message) > SMALL_BYTES:
                return
            self._waiting.popleft()
            worker.take([number])
            with suppress(OSError):  # it has died, as the next wait finds
                worker.connection.send_bytes(message)

    def _hand_over(self, far: Far) -> None:
        """Give the far side what it does sooner than workers, as somebody waits for a result."""
        if self._waiting or far.own:
            far.start(self._setup, self._files)
        if far.lost and far.own:
            self._waiting.extend(far.forget())
            self._hand_out()
        under_way = sum(len(each.has) for each in self._workers)
        while numbers := far.batch(self._waiting, under_way, self._count):
            far.give(numbers, [self._tasks[number][1] for number in numbers])

    def _hear(self, most_s: float) -> bool:
        """Wait for a result or the end of a process; return whether anything came in time."""
        processes, far = [*self._workers], self.far
        if far is not None and far.worker is not None:
            processes.append(far.worker)
            most_s = min(most_s, far.patience_s)
        ready = wait([each.connection for each in processes], None if most_s == math.inf else most_s)
        heard = bool(ready)
        for worker in [each for each in self._workers if each.connection in ready]:
            try:
                number, done, result = worker.connection.recv()
            except (EOFError, OSError):
                self._bury(worker)
                continue
            if number == CANNOT_START:
                self._broken = result
                continue
            self._vain = 0
            took_s = worker.done(number)
            if far is not None and not worker.is_new:  # a first task takes its process's start, too
                far.learn(took_s)
            worker.is_new = False
            self._learn(number, done, result)
        if far is not None and far.worker is not None and (far.worker.connection in ready or not far.patience_s):
            self._waiting.extendleft(reversed(far.hear(self._learn)))
            heard = True  # it is not overdue any more
        if self._broken is None:
            self._hand_out()
        return heard

    def _learn(self, number: int, done: bool, result: Any) -> None:
        del self._tasks[number]
        self._results[number] = done, result

    def _bury(self, worker: Worker) -> None:
        """Forget a process that has died, and have others do its tasks."""
        self._workers.remove(worker)
        how = worker.ended()
        if worker.has:
            first = worker.has[0]
            self._deaths[first] = self._deaths.get(first, 0) + 1
            if self._deaths[first] >= _MOST_DEATHS:
                worker.has.popleft()
                what = f"{_MOST_DEATHS} worker processes died at one block, {self._tasks.pop(first)[0]}"
                self._results[first] = False, SourceError(f"{what}: the last (process {worker.pid}) {how}")
            self._waiting.extendleft(reversed(worker.has))
            return
        self._vain += 1
        if self._vain > _MOST_DEATHS * self._count and self._broken is None:
            self._broken = SourceError(f"{self._vain} worker processes died before they had work: the last {how}")

    def _started(self) -> Worker:
        worker = Worker(*start_process(self._module, self._files, ONE_THREAD))
        with suppress(OSError):  # it has died, as the next wait finds
            worker.connection.send_bytes(self._setup)
        return worker
