"""Listens to feeds: how far each run's trainers lag behind, and who holds them back."""

from __future__ import annotations

import time

from penstock.feed.endpoint import endpoints
from penstock.feed.statistics import FeederStatistics
from penstock.runs.listeners.contract import Sample, Tick, Values, WatchedRun

_ANSWER_S = 0.1
_REST = 10.0


class FeedListener:
    """What the feeders of this user tell of the trainers among a run's processes.

    A feeder that is stopped costs the time that it does not answer; all are then left alone for ten times as long.
    """

    name = "feed"

    def __init__(self) -> None:
        self._next_s = 0.0
        self._trainer_s: dict[tuple[int, int], float] = {}
        self._held_back_s: dict[str, float] = {}

    def unavailable(self) -> str | None:
        return None

    def sample(self, tick: Tick) -> Sample:
        if tick.time_s < self._next_s:
            return Sample()
        began_s = time.monotonic()
        feeds = _feeds()
        self._next_s = tick.time_s + _REST * (time.monotonic() - began_s)
        run_of = {pid: run for run in tick.runs for pid in tick.trees[run.id].pids}
        runs: dict[str, Values] = {}
        trainer_s: dict[tuple[int, int], float] = {}
        for feed in feeds:
            for trainer in feed.trainers:
                if (run := run_of.get(trainer.pid)) is None:
                    continue
                key = (feed.pid, trainer.pid)
                trainer_s[key] = trainer_s.get(key, 0.0) + trainer.held_back_s
                gauges = runs.get(run.id, Values()).gauges
                lag = max(trainer.lag_samples, gauges.get("feed.lag_samples", 0))
                runs[run.id] = Values(gauges={**gauges, "feed.lag_samples": lag, **_holder(feed, run_of)})
        return Sample(runs=runs)

    def close(self) -> None:
        pass
