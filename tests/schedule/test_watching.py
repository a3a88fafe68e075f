"""What a scheduler sees of runs that go on: rates that are off, pairs that are slower together."""

from __future__ import annotations

import math

from penstock.feed.queries import FeedUsage
from penstock.schedule.jobs import GpuMachine, Job
from penstock.schedule.partition import Placed
from penstock.schedule.usage import Usage, UsageWindow, slower_together

MACHINE = GpuMachine(cores=8, memories=(1e9,))


def watched(samples_per_s: float, seconds: int = 60, expected: float | None = None) -> UsageWindow:
    found = UsageWindow()
    for second in range(seconds + 1):
        done = samples_per_s * second + 1
        found.add(Usage(100.0 + second, done, second * 1.0, 0.0, second * 0.5, 1000, None))
    found.expected = expected
    return found


def test_a_rate_counts_as_off_once_it_was_for_ten_seconds() -> None:
    assert not watched(80, seconds=9, expected=100).is_off()
    assert watched(80, seconds=11, expected=100).is_off()
    assert not watched(90, seconds=11, expected=100).is_off()
    assert watched(120, seconds=11, expected=100).is_off()


def test_what_was_seen_beside_others_is_forgotten_when_they_go() -> None:
    one = watched(100)
    seen = one.seen()
    assert seen and math.isclose(seen.costs.samples_per_s, 100)
    one.begin_anew()
    assert one.seen() is None
    assert one.first and one.first.samples == 1


FEED = FeedUsage("numbers", 7, 3.0, 400, 1000)


def looked(*looks: Usage) -> UsageWindow:
    found = UsageWindow()
    for each in looks:
        found.add(each)
    return found


def trains(seconds: float, feed: FeedUsage | None = None, of: str = "feed.train.") -> Usage:
    """A look at a run that trains on a sample a millisecond, of which it computes a tenth."""
    fed = feed._replace(cpu_s=seconds * 0.2, samples=round(seconds * 1000)) if feed else None
    return Usage(100 + seconds, seconds * 1000, seconds, 0.0, seconds * 0.1, 1000, fed, 0.0, of)


def test_what_a_run_does_after_its_last_batch_costs_its_samples_nothing() -> None:
    training = [trains(1 + second) for second in range(15)]
    last = training[-1]
    evaluates = [last._replace(time_s=116 + i, own_cpu_s=last.own_cpu_s + 2 * (1 + i)) for i in range(20)]
    a_little_back = [
        each._replace(samples=last.samples - 9) for each in evaluates
    ]  # a look runs ahead of what it counts
    for after in (evaluates, a_little_back):
        watched = looked(*training, *after)
        for seen in (watched.seen(), watched.in_all()):
            assert seen and math.isclose(seen.costs.own_s, 1e-4) and math.isclose(seen.costs.samples_per_s, 1000)
        assert watched.newest is after[-1]


def test_an_evaluation_before_the_training_is_no_part_of_what_was_seen_of_it() -> None:
    before = [trains(1 + second, of="feed.") for second in range(30)]
    watched = looked(*before, *(trains(second / 10)._replace(time_s=131 + second) for second in range(12)))
    seen = watched.seen()
    assert seen and watched.first and watched.first.samples == 100
    assert math.isclose(seen.costs.samples_per_s, 100)


def test_a_short_run_on_a_feed_is_known_whoever_came_and_went_and_whenever_its_feed_answered() -> None:
    known = (5000.0, 0.0002, 0.0001)
    for feeds, without in (([FEED] * 6, -1), ([None, *[FEED] * 4, None], -1), ([FEED] * 6, 3), ([FEED] * 6, 5)):
        watched = UsageWindow()
        for second, feed in enumerate(feeds):
            watched.add(trains(1.0 + second, feed))
            if second == without:
                watched.begin_anew()
        seen = watched.in_all()
        assert (
            seen and math.isclose(seen.costs.preparation_s, known[1]) and math.isclose(seen.costs.own_s, known[2])
        )
    replaced = [FEED, FEED, FEED._replace(pid=8), FEED._replace(pid=8)]
    seen = looked(*(trains(1.0 + second, feed) for second, feed in enumerate(replaced))).in_all()
    assert seen and math.isclose(seen.costs.preparation_s, known[1])
    assert looked(trains(1.0, FEED)).in_all() is None


def test_two_that_fight_on_a_gpu_are_found_and_two_that_get_on_are_not() -> None:
    # Alone, each trains 1,000 samples a second; by turns they would have 500 each.
    jobs = [Job(name=name, samples=1e6, preparation_s=1e-4, gpu_s=1e-3) for name in "ab"]
    placed = [Placed.on(job, (0,), MACHINE) for job in jobs]
    left = {"a": 1e6, "b": 1e6}
    for rate, slow in ((500, False), (480, False), (400, True), (200, True)):
        seen = {"a": watched(rate), "b": watched(rate)}
        assert bool(slower_together(seen, placed, left, MACHINE, "none")) == slow, rate


def test_two_on_different_gpus_are_not_compared() -> None:
    machine = GpuMachine(cores=8, memories=(1e9, 1e9))
    jobs = [Job(name=name, samples=1e6, preparation_s=1e-4, gpu_s=1e-3) for name in "ab"]
    placed = [Placed.on(job, (gpu,), machine) for gpu, job in enumerate(jobs)]
    assert not slower_together({"a": watched(1), "b": watched(1)}, placed, {"a": 1, "b": 1}, machine, "none")
