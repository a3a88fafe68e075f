"""Listens to feeds: each run's part of what they use, how far its trainers lag behind, and who holds them back."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable

from penstock.feed.endpoint import endpoints
from penstock.feed.statistics import FeederStatistics, FeederUsage
from penstock.linux.process import start_ticks
from penstock.runs.listeners.contract import FeedPart, Listener, Sample, Tick, Values

_ANSWER_S = 0.1
_REST = 10.0


class FeedParts:
    """Asks this user's feeders what they and the trainers among runs' processes do.

    A feeder that is stopped costs the time that it does not answer; all are then left alone for ten times as long.
    """

    def __init__(self) -> None:
        self._ask: Callable[[float], list[FeederStatistics]] | None = None
        self._next_s = 0.0
        self._used: dict[int, FeederUsage] = {}  # by feeders, as seen last
        self._held_back_s: dict[tuple[int, int], float] = {}  # by feeders' and trainers' processes
        self._parts: dict[str, FeedPart] = {}
        self._since_ticks = start_ticks(os.getpid()) or 0

    def look(self, tick: Tick) -> dict[str, FeedPart]:
        """Return the parts of those runs that have read a feed, by their ids."""
        if tick.time_s < self._next_s:
            return {id: _sums(part) for id, part in self._parts.items()}
        ask = self._asking()
        began_s = time.monotonic()  # without the import
        feeds = ask(_ANSWER_S) if ask else []
        silent = {feed.pid for feed in feeds if not feed.answers}
        self._next_s = tick.time_s + _REST * (time.monotonic() - began_s)
        run_of = {pid: run for run in tick.runs for pid in tick.trees[run.id].pids}
        trainers = Counter[int]()  # of all feeds of a process
        for feed in feeds:
            trainers[feed.pid] += len(feed.trainers)
        parts = {run.id: _sums(part) for run in tick.runs if (part := self._parts.get(run.id))}
        held_back_s = {at: its_s for at, its_s in self._held_back_s.items() if at[0] in silent}
        for feed in feeds:
            its = [(run, trainer) for trainer in feed.trainers if (run := run_of.get(trainer.pid))]
            if not its:
                continue
            now, before = feed.usage, self._used_before(feed, min(run.keeper[1] for run, _ in its))
            own = 1 / trainers[feed.pid] if feed.pid not in run_of else 0.0  # else it is among a run's processes
            # Who maps the window holds a part of it, as the kernel counts a run's own.
            mapped = now.processes / (now.processes + len(feed.trainers)) / len(feed.trainers)
            memory_bytes = own * now.private_bytes + (feed.resident_bytes * mapped if own else 0.0)
            for run, trainer in its:
                part = parts.get(run.id, FeedPart())
                at = feed.pid, trainer.pid
                held_back_s[at] = trainer.held_back_s
                holder = run_of.get(feed.held_back_by or 0)
                held_by = part.held_back_by if feed.held_back_by is None else holder.index if holder else -1
                parts[run.id] = FeedPart(
                    part.cpu_s + own * max(0.0, now.cpu_s - before.cpu_s),
                    part.read_bytes + own * max(0, now.read_bytes - before.read_bytes),
                    part.write_bytes + own * max(0, now.write_bytes - before.write_bytes),
                    (part.memory_bytes or 0.0) + memory_bytes,
                    part.held_back_s + max(0.0, trainer.held_back_s - self._held_back_s.get(at, 0.0)),
                    max(trainer.lag_samples, part.lag_samples or 0),
                    held_by,
                )
        was = {pid: used for pid, used in self._used.items() if pid in silent}
        self._used = was | {feed.pid: feed.usage for feed in feeds if feed.answers}
        self._held_back_s, self._parts = held_back_s, parts
        return parts

    def _used_before(self, feed: FeederStatistics, since_ticks: int) -> FeederUsage:
        """Return what a feeder had used at the last look; at the first, 0 if it has served these runs alone.

        Of one that was there before this sampler, nobody knows whom it has served.
        """
        if feed.pid in self._used:
            return self._used[feed.pid]
        is_theirs = (start_ticks(feed.pid) or 0) >= max(since_ticks, self._since_ticks)
        return FeederUsage() if is_theirs else feed.usage

    def _asking(self) -> Callable[[float], list[FeederStatistics]] | None:
        """Return what asks all feeders; None while there has been none."""
        if self._ask is None and next(endpoints(), None) is not None:
            # It brings NumPy, 25 MB: for those who have a feed.
            from penstock.feed.launch.feeds import feeds

            self._ask = feeds
        return self._ask


def _sums(part: FeedPart) -> FeedPart:
    """Return what is true of more than one moment."""
    return part._replace(memory_bytes=None, lag_samples=None, held_back_by=None)


class FeedListener(Listener):
    """What this user's feeders report of the trainers among a run's processes, and the run's part of their use."""

    name = "feed"

    def sample(self, tick: Tick) -> Sample:
        return Sample(runs={id: _values(part) for id, part in tick.feeds.items()})


def _values(part: FeedPart) -> Values:
    counters = {
        "feed.cpu_s": part.cpu_s,
        "feed.read_bytes": part.read_bytes,
        "feed.write_bytes": part.write_bytes,
        "feed.held_back_s": part.held_back_s,
    }
    gauges = {
        "feed.memory_bytes": part.memory_bytes,
        "feed.lag_samples": part.lag_samples,
        "feed.held_back_by": part.held_back_by,
    }
    return Values(counters, {name: float(value) for name, value in gauges.items() if value is not None})
