"""Listens to feeds: how far each run's trainers lag behind, and who holds them back."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.feed.endpoint import endpoints
from penstock.feed.statistics import FeederStatistics
from penstock.runs.listeners.contract import Listener, Sample, Tick, Values

_ANSWER_S = 0.1
_REST = 10.0


class FeedListener(Listener):
    """What this user's feeders report of the trainers among a run's processes.

    A feeder that is stopped costs the time that it does not answer; all are then left alone for ten times as long.
    """

    name = "feed"

    def __init__(self) -> None:
        self._ask: Callable[[float], list[FeederStatistics]] | None = None
        self._next_s = 0.0
        self._trainer_s: dict[tuple[int, int], float] = {}
        self._held_back_s: dict[str, float] = {}

    def sample(self, tick: Tick) -> Sample:
        if tick.time_s < self._next_s:
            return Sample()
        began_s = time.monotonic()
        feeds = self._feeds()
        self._next_s = tick.time_s + _REST * (time.monotonic() - began_s)
        run_of = {pid: run for run in tick.runs for pid in tick.trees[run.id].pids}
        gauges: dict[str, dict[str, float]] = {}
        trainer_s: dict[tuple[int, int], float] = {}
        for feed in feeds:
            for trainer in feed.trainers:
                if (run := run_of.get(trainer.pid)) is None:
                    continue
                trainer_s[feed.pid, trainer.pid] = trainer.held_back_s
                grown_s = trainer.held_back_s - self._trainer_s.get((feed.pid, trainer.pid), 0.0)
                self._held_back_s[run.id] = self._held_back_s.get(run.id, 0.0) + max(0.0, grown_s)
                its = gauges.setdefault(run.id, {})
                its["feed.lag_samples"] = max(trainer.lag_samples, its.get("feed.lag_samples", 0))
                if feed.held_back_by is not None:
                    holder = run_of.get(feed.held_back_by)
                    its["feed.held_back_by"] = holder.index if holder else -1
        self._trainer_s = trainer_s
        self._held_back_s = {run.id: self._held_back_s.get(run.id, 0.0) for run in tick.runs}
        return Sample(
            runs={id: Values({"feed.held_back_s": self._held_back_s[id]}, its) for id, its in gauges.items()}
        )

    def _feeds(self) -> list[FeederStatistics]:
        if self._ask is None:
            if next(endpoints(), None) is None:
                return []
            # It brings NumPy, 25 MB: for those who have a feed.
            from penstock.feed.launch.feeds import feeds

            self._ask = feeds
        return self._ask(_ANSWER_S)
