"""Workers and a far side on a clock that only they move, with the real pool between them."""

from __future__ import annotations

import math
import pickle
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

from penstock.errors import SourceError
from penstock.sources.workers.far import FarSide
from penstock.sources.workers.pool import WorkerPool
from penstock.sources.workers.process import CANNOT_START, READY

PARTS = 4
"""Parts of a block."""
SHARES = (0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1)
"""Fixed shares of a far side that are tried."""
NAME = "the far side"
Rate = Callable[[float], float]
"""Parts a second at a time."""


class Trouble:
    """What a far side does to its batches, by their number: it dies, hangs, answers twice, and so on."""

    def __init__(self, of: Mapping[int, str]) -> None:
        self._of = of
        self._batches = 0
        self.met: list[str] = []

    def next(self) -> str:
        self._batches += 1
        found = self._of.get(self._batches, "")
        self.met += [found] * bool(found)
        return found


class Process:
    """A process that answers tasks in time, and the connection to it."""

    def __init__(self, clock: Clock, rate: Rate, batch_s: float, *, is_far: bool) -> None:
        self._clock, self._rate, self._batch_s, self._is_far = clock, rate, batch_s, is_far
        self._free_s, self._warm_s = 0.0, clock.warm_s * is_far
        self._is_set_up = False
        self._hangs = False
        self.answers: deque[tuple[float, Any]] = deque()  # None for its end

    def send_bytes(self, message: bytes) -> None:
        if self._is_set_up:
            self.send([message])
        elif self._is_far:
            self.answers.append((self._clock.now_s, (READY, True, None)))
        self._is_set_up = True

    def send(self, messages: Sequence[bytes]) -> None:
        tasks = [pickle.loads(each) for each in messages]
        trouble = self._clock.troubles.next() if self._is_far else ""
        began_s = max(self._free_s, self._clock.now_s)
        self._free_s = began_s + self._batch_s + self._warm_s + len(tasks) / self._rate(began_s)
        self._warm_s = 0.0
        answers = [(number, True, (task, self._is_far)) for number, task in tasks]
        if trouble == "backwards":
            answers.reverse()
        if trouble == "twice":
            answers += answers
        if trouble in ("die", "hang", "fail"):
            answers = answers[:-1]
        if not self._hangs:
            self.answers.extend((self._free_s, answer) for answer in answers)
            if trouble in ("die", "fail"):
                fails = CANNOT_START, False, SourceError("an error of the driver's")
                self.answers.append((self._free_s, fails if trouble == "fail" else None))
        self._hangs |= trouble in ("die", "hang", "fail")

    def recv(self) -> Any:
        assert self.poll()
        if (answer := self.answers.popleft()[1]) is None:
            raise EOFError
        return answer

    def poll(self) -> bool:
        return bool(self.answers) and self.answers[0][0] <= self._clock.now_s

    def close(self) -> None:
        self.answers.clear()


class Clock:
    """The time, which whoever waits for an answer moves."""

    def __init__(
        self,
        worker: Rate,
        far: Rate,
        far_batch_s: float = 0.0,  # what a batch takes beside its parts
        troubles: Trouble | None = None,
        warm_s: float = 0.0,  # what a far side's first batch takes besides
    ) -> None:
        self.now_s, self.warm_s = 0.0, warm_s
        self.troubles = troubles or Trouble({})
        self._worker, self._far, self._far_batch_s = worker, far, far_batch_s
        self._processes: list[Process] = []

    def start(self, module: str, *_: Any) -> tuple[int, Process]:
        is_far = module == NAME
        rate, batch_s = (self._far, self._far_batch_s) if is_far else (self._worker, 0.0)
        self._processes.append(Process(self, rate, batch_s, is_far=is_far))
        return 0, self._processes[-1]

    def wait(self, processes: Sequence[Process], most_s: float | None) -> list[Process]:
        until_s = min((each.answers[0][0] for each in processes if each.answers), default=math.inf)
        if most_s is not None:
            until_s = min(until_s, self.now_s + most_s)
        assert until_s < math.inf, "nobody answers any more"
        self.now_s = max(self.now_s, until_s)
        return [each for each in processes if each.poll()]

    def writing(self) -> bool:
        """Whether anybody is at work."""
        return any(at_s > self.now_s for each in self._processes for at_s, _ in each.answers)


@contextmanager
def on(clock: Clock) -> Generator[None]:
    """Have pools start their processes on a clock."""
    ours = {
        "pool.wait": clock.wait,
        "pool.start_process": clock.start,
        "pool.os.kill": lambda *_: None,
        "far.start_process": clock.start,
        "far._limit": lambda _: None,
        "far.say": lambda _: None,
        "far.monotonic": lambda: clock.now_s,
        "process.monotonic": lambda: clock.now_s,
        "process.os.waitpid": lambda *_: (0, 9),
    }
    with ExitStack() as stack:
        for name, its in ours.items():
            stack.enter_context(patch(f"penstock.sources.workers.{name}", its))
        yield


def feed_s(clock: Clock, blocks: int, workers: int, far: FarSide | None, most_blocks: int) -> tuple[float, float]:
    """Seconds that a feed takes whose trainers only take, and the part of it that the far side did.

    As many blocks are under way as the pool has capacity for, ``most_blocks`` at most.
    """
    numbers, under_way, left, far_parts = count(), deque[Sequence[int]](), blocks, 0
    with on(clock):
        pool: WorkerPool[str, Any] = WorkerPool(workers, "a worker", far)
        while left or under_way:
            while left and len(under_way) < most_blocks and sum(map(len, under_way)) <= pool.capacity:
                block = [next(numbers) for _ in range(PARTS)]
                for each in block:
                    pool.submit(each, f"part {each}")
                under_way.append(block)
                left -= 1
            far_parts += sum(pool.result(each)[1] for each in under_way.popleft())
    return clock.now_s, far_parts / (blocks * PARTS)


def against_the_best_split(clock: Callable[[], Clock], blocks: int) -> float:
    """Return the time that is taken by two workers and a far side, of that of its best fixed share."""
    took_s, *fixed_s = (feed_s(clock(), blocks, 2, FarSide(NAME, NAME, each), 6)[0] for each in (None, *SHARES))
    return took_s / min(fixed_s)
