"""What feeders tell of the trainers that are among a run's processes."""

from __future__ import annotations

import os
from itertools import islice

import numpy as np

import penstock
from penstock.feed.endpoint import Endpoint
from penstock.runs.listeners.contract import Tick, Tree, WatchedRun
from penstock.runs.listeners.feed import FeedListener
from penstock.testing.listener import ListenerContract


class TestFeed(ListenerContract):
    def make(self):
        return FeedListener()


def tick(time_s: float, *runs: tuple[str, int]) -> Tick:
    return Tick(
        time_s,
        tuple(WatchedRun(id, index + 3, (1, 1), 1) for index, (id, _) in enumerate(runs)),
        {id: Tree((pid,), 0.0, 0, 0, 0, 0) for id, pid in runs},
        0.0,
    )


def test_a_trainer_among_a_runs_processes_tells_its_lag_and_who_holds_the_feed_back(serve):
    blocks = [np.zeros((64, 256), np.uint8) for _ in range(64)]
    serve(blocks, window=1 << 17)
    loader = penstock.attach("feed", batch_size=64)
    batches = iter(loader)
    next(batches)
    listener = FeedListener()
    seconds = iter(range(10**9, 10**10))
    while "feed.held_back_by" not in (values := told(listener, next(seconds))).gauges:
        pass
    assert values.gauges["feed.held_back_by"] == 4
    assert values.gauges["feed.lag_samples"] >= 64
    while not (later := told(listener, next(seconds))).counters["feed.held_back_s"] > 0.05:
        pass
    assert later.counters["feed.held_back_s"] >= values.counters["feed.held_back_s"]
    list(islice(batches, 8))
    loader.close()


def told(listener: FeedListener, second: int):
    runs = listener.sample(tick(second, ("other", 1), ("mine", os.getpid()))).runs
    assert "other" not in runs
    return runs["mine"]


def test_a_feeder_that_does_not_answer_is_not_waited_for_at_each_tick():
    endpoint = Endpoint("silent")
    lock = endpoint.acquire()
    assert lock
    with endpoint.listen():
        listener = FeedListener()
        asked = 0
        for second in range(10):
            before_s = listener._next_s
            assert not listener.sample(tick(1e9 + second / 5, ("a", os.getpid()))).runs
            asked += listener._next_s != before_s
    endpoint.remove(lock)
    assert asked < 5
