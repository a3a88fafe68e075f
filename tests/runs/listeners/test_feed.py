"""What feeders tell of the trainers that are among a run's processes, and of what they use themselves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tests.forked import eventually

import penstock
from penstock.feed.endpoint import Endpoint
from penstock.feed.statistics import FeederStatistics, FeederUsage, TrainerStatistics
from penstock.linux.process import start_ticks
from penstock.runs.listeners.contract import FeedPart, Tick, Tree, WatchedRun
from penstock.runs.listeners.feed import FeedListener, FeedParts
from penstock.testing.listener import ListenerContract


class TestFeed(ListenerContract):
    def make(self):
        return FeedListener()


def tick(time_s: float, *runs: tuple[str, int], started: int = 1) -> Tick:
    return Tick(
        time_s,
        tuple(WatchedRun(id, index + 3, (1, started), 1) for index, (id, _) in enumerate(runs)),
        {id: Tree((pid,), 0.0, 0, 0, 0, 0) for id, pid in runs},
        0.0,
    )


def feed(pid: int, used: FeederUsage, *trainers: int, **more: Any) -> FeederStatistics:
    its = [TrainerStatistics(each, 8, False, 0, 1, 0, "reading", 0, 0, 5, 0, 0.0, "") for each in trainers]
    return FeederStatistics("feed", pid, trainers=tuple(its), usage=used, **more)


def parts_over(
    looks: Sequence[Sequence[FeederStatistics]], *runs: tuple[str, int], started: int = 1
) -> dict[str, FeedPart]:
    parts = FeedParts()
    coming = iter(looks)
    parts._ask = lambda _: list(next(coming))
    found = [parts.look(tick(1e9 + 1000 * place, *runs, started=started)) for place in range(len(looks))]
    return dict(found[-1])


THIS = os.getpid()  # a process that began after the runs, as a feeder that one of them has started


def test_what_a_feed_uses_is_divided_among_its_trainers_whoever_started_it():
    used = FeederUsage(cpu_s=12.0, private_bytes=900, read_bytes=300, write_bytes=30, processes=3)
    found = parts_over([[feed(THIS, used, 11, 12, 99, resident_bytes=600)]], ("a", 11), ("b", 12))
    whole = FeedPart(cpu_s=4.0, read_bytes=100.0, write_bytes=10.0, memory_bytes=300.0 + 100.0, lag_samples=5)
    assert found == {"a": whole, "b": whole}, "the third of them is no run's"


def test_a_run_has_no_part_of_what_a_feed_used_without_it():
    before, then, now = (FeederUsage(cpu_s=each) for each in (5.0, 9.0, 10.0))
    looks = [[feed(THIS, before, 11)], [feed(THIS, then, 11)], [feed(THIS, now, 11, 12)]]
    found = parts_over(looks, ("a", 11), ("b", 12))
    assert (found["a"].cpu_s, found["b"].cpu_s) == (9.5, 0.5)
    later = (start_ticks(THIS) or 0) + 1
    found = parts_over([[feed(THIS, before, 11)], [feed(THIS, then, 11)]], ("a", 11), started=later)
    assert found["a"].cpu_s == 4.0, "it has run since before the run began"


def test_after_another_sampler_only_what_a_feed_uses_from_now_on_counts():
    parts = FeedParts()
    parts._since_ticks = (start_ticks(THIS) or 0) + 1  # the feed was there before it
    parts._ask = lambda _: [feed(THIS, FeederUsage(cpu_s=1000.0), 11, 12)]
    parts.look(tick(1e9, ("a", 11), ("b", 12)))
    parts._ask = lambda _: [feed(THIS, FeederUsage(cpu_s=1004.0), 11, 12)]
    assert {id: part.cpu_s for id, part in parts.look(tick(2e9, ("a", 11), ("b", 12))).items()} == {
        "a": 2.0,
        "b": 2.0,
    }


def test_a_process_that_serves_two_feeds_counts_once():
    used = FeederUsage(cpu_s=8.0, private_bytes=100)
    found = parts_over([[feed(THIS, used, 11), feed(THIS, used, 12)]], ("a", 11), ("b", 12))
    assert {id: (part.cpu_s, part.memory_bytes) for id, part in found.items()} == {
        "a": (4.0, 50.0),
        "b": (4.0, 50.0),
    }


def test_a_feed_that_did_not_answer_for_a_while_counts_once():
    silent = FeederStatistics("feed", THIS, answers=False)
    before, now = (feed(THIS, FeederUsage(cpu_s=each), 11) for each in (6.0, 8.0))
    looks = [[before], [silent], [silent], [now]]
    assert parts_over(looks[:3], ("a", 11))["a"] == FeedPart(cpu_s=6.0), "and nothing is known of it now"
    assert parts_over(looks, ("a", 11))["a"].cpu_s == 8.0


def test_a_feeder_that_is_a_runs_own_process_is_counted_there():
    found = parts_over([[feed(11, FeederUsage(cpu_s=6.0, private_bytes=9), 11)]], ("a", 11))
    assert (found["a"].cpu_s, found["a"].memory_bytes) == (0.0, 0.0)


def test_a_real_feeder_tells_what_it_uses(forks_feeders):
    data = penstock.ArraySource({"x": np.zeros((4096, 1024), np.uint8)})
    with penstock.share(lambda: data, name="used", batch_size=64, linger=0.0) as loader:
        read = sum(len(batch["x"]) for batch in loader)
        parts = FeedParts()
        seconds = iter(range(10**9, 10**10))

        def used() -> FeedPart | None:
            (its,) = penstock.feeds()
            assert Path(f"/proc/{its.pid}/comm").read_bytes() == b"penstock-feed\n"
            part = parts.look(tick(next(seconds), ("mine", os.getpid()))).get("mine")
            return part if part and part.cpu_s and part.memory_bytes else None

        part = eventually(used)
    assert read == 4096
    assert part.cpu_s < 60.0
    assert 1 << 20 < part.memory_bytes < 1 << 30


def test_a_trainer_among_a_runs_processes_tells_its_lag_and_who_holds_the_feed_back(serve):
    blocks = [np.zeros((64, 256), np.uint8) for _ in range(64)]
    serve(blocks, window=1 << 17)
    loader = penstock.attach("feed", batch_size=64)
    batches = iter(loader)
    next(batches)
    parts = FeedParts()
    seconds = iter(range(10**9, 10**10))
    while "feed.held_back_by" not in (values := told(parts, next(seconds))).gauges:
        pass
    assert values.gauges["feed.held_back_by"] == 4
    assert values.gauges["feed.lag_samples"] >= 64
    while not (later := told(parts, next(seconds))).counters["feed.held_back_s"] > 0.05:
        pass
    assert later.counters["feed.held_back_s"] >= values.counters["feed.held_back_s"]
    list(islice(batches, 8))
    loader.close()


def told(parts: FeedParts, second: int):
    at = tick(second, ("other", 1), ("mine", os.getpid()))
    runs = FeedListener().sample(at._replace(feeds=parts.look(at))).runs
    assert "other" not in runs
    return runs["mine"]


def test_while_it_rests_only_sums_are_told_again():
    parts = FeedParts()
    parts._ask = lambda _: [feed(THIS, FeederUsage(cpu_s=6.0), 11)]
    assert parts.look(tick(1e9, ("a", 11)))["a"].lag_samples == 5
    parts._next_s = 2e9
    assert parts.look(tick(1e9 + 1, ("a", 11)))["a"] == FeedPart(cpu_s=6.0)


def test_a_feeder_that_does_not_answer_is_not_waited_for_at_each_tick():
    endpoint = Endpoint("silent")
    lock = endpoint.acquire()
    assert lock
    with endpoint.listen():
        parts = FeedParts()
        asked = 0
        for second in range(10):
            before_s = parts._next_s
            assert not parts.look(tick(1e9 + second / 5, ("a", os.getpid())))
            asked += parts._next_s != before_s
    endpoint.remove(lock)
    assert asked < 5
