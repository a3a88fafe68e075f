"""Whether a run waits for itself: on one feed for another run, which waits on a second feed for this one.

Two runs that read two feeds at different rates come to that: each is a window ahead on one of the feeds, and
stands still there until the other has come. The feeds' statistics show it, if they are asked twice: a trainer
that waits says for how long once a second, and one that validates, or computes a long step, does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.feed.statistics import FeederStatistics, TrainerStatistics

_LOOK_S = 1.5
_LOOKS_A_TURN = 3
"""To start a feeder takes one who goes on alone some seconds, on a busy machine."""


class Deadlock(Exception):
    """Raised where a trainer waits for itself, and goes on without the feed that it waits on."""

    def __init__(self, waits: Sequence[Wait], mine: Wait) -> None:
        last = next(wait for wait in waits if wait.holder == mine.run)
        super().__init__(
            f"feed {mine.feed!r} waits for process {mine.holder_pid} to read on, and that waits for this one "
            f"(pid {mine.pid}) on feed {last.feed!r}: they read the two at different rates"
            if last is not mine
            else f"feed {mine.feed!r} waits for another loader of this process (pid {mine.pid}) to read on"
        )
        self.holder_pid = mine.holder_pid


class Wait(NamedTuple):
    """A run stands still until another reads on."""

    run: str  # who waits: a process, or the ranks of one job
    pid: int  # its process that does
    feed: str  # the feed that it waits on, which waits for room
    holder: str  # the run that holds most of that feed's window; of two that hold as much, there are two waits
    holder_pid: int  # that run's process that holds it
    wait_s: float  # time for which the process has waited on this feed in all


def waits(before: Sequence[FeederStatistics], now: Sequence[FeederStatistics]) -> list[Wait]:
    """Return who has stood still between two looks at the feeds, on which feed, and for whom."""
    known = {(feed.name, feed.pid): feed for feed in before}
    return [
        wait
        for feed in now
        if (earlier := known.get((feed.name, feed.pid))) is not None and _stands_still(earlier, feed)
        for wait in _waits_on(earlier, feed)
    ]


def cycle(waits: Sequence[Wait], pid: int, feed: str) -> list[Wait]:
    """Return the waits by which a process waits for itself on a feed, its own among them; empty if it does not.

    They are sorted, for all who see them alike: who has waited longest, and so has the most to gain, comes first.
    """
    paths = [[wait] for wait in waits if (wait.pid, wait.feed) == (pid, feed)]
    reached = {path[0].holder for path in paths}
    for path in paths:
        if path[-1].holder == path[0].run:
            return sorted(path, key=lambda wait: (-wait.wait_s, wait.pid))
        for wait in waits:
            if wait.run == path[-1].holder and (wait.holder == path[0].run or wait.holder not in reached):
                reached.add(wait.holder)
                paths.append([*path, wait])
    return []


def _stands_still(before: FeederStatistics, now: FeederStatistics) -> bool:
    return None not in (before.held_back_by, now.held_back_by) and before.blocks == now.blocks


def _waits_on(before: FeederStatistics, now: FeederStatistics) -> Iterator[Wait]:
    most_bytes = max(each.held_bytes for each in now.trainers)
    holders = [each for each in now.trainers if each.held_bytes == most_bytes]
    known, there = _by_process(before), _by_process(now)
    stayed = [pid for pid in there if len(there[pid]) == len(known.get(pid, []))]
    for was, trainer in (pair for pid in stayed for pair in zip(known[pid], there[pid], strict=True)):
        if trainer.wait_s > was.wait_s and (was.taken, was.lag_samples) == (trainer.taken, trainer.lag_samples):
            for holder in holders:
                slower_rank = _run(trainer) == _run(holder) and trainer.pid != holder.pid
                if holder is not trainer and not slower_rank:
                    yield Wait(_run(trainer), trainer.pid, now.name, _run(holder), holder.pid, trainer.wait_s)


def _by_process(feed: FeederStatistics) -> dict[int, list[TrainerStatistics]]:
    found: dict[int, list[TrainerStatistics]] = {}
    for trainer in feed.trainers:
        found.setdefault(trainer.pid, []).append(trainer)
    return found


def _run(trainer: TrainerStatistics) -> str:
    return trainer.group or str(trainer.pid)


@dataclass
class DeadlockWatch:
    """Looks at all feeds while a trainer waits on one."""

    feeds: Callable[[], list[FeederStatistics]]  # returns the statistics of all feeds
    feed: str  # the feed that the trainer waits on
    pid: int  # the trainer's process
    clock: Callable[[], float] = time.monotonic  # returns the time, in seconds of a monotonic clock

    def __post_init__(self) -> None:
        self._before: list[FeederStatistics] = []
        self._next_s = 0.0
        self._seen = 0

    def look(self) -> None:
        """Look, if the last time was long enough ago."""
        if self.clock() < self._next_s:
            return
        now = self.feeds()
        found = cycle(waits(self._before, now), self.pid, self.feed)
        self._before, self._next_s = now, self.clock() + _LOOK_S
        self._seen = self._seen + 1 if found else 0
        turn = next((i for i, wait in enumerate(found) if wait.pid == self.pid), 0)
        if self._seen > turn * _LOOKS_A_TURN:  # those before it may be unable to
            self._seen = 0
            raise Deadlock(found, found[turn])
