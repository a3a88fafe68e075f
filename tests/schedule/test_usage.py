"""Looks at runs that go on: what they have used, and what a sample cost them between two."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.forked import eventually
from tests.runs.running import nothing_is_left

import penstock
from penstock.feed.queries import FeedUsage
from penstock.runs.launch.launcher import Launcher
from penstock.runs.record import GroupPlan, RunPlan
from penstock.runs.store import SeriesWriter, Store, points_file
from penstock.schedule.usage import Usage, costs, usage_of

BEFORE = Usage(10.0, 100.0, 8.0, 2.0, 5.0, 0, None, 1.0)
FEED = FeedUsage("numbers", 7, 3.0, 400.0, 1000)


def test_costs_are_those_of_the_samples_in_between():
    after = Usage(20.0, 200.0, 18.0, 6.0, 12.0, 0, None, 6.0)
    assert costs(BEFORE, after) == pytest.approx((10.0, 0.05, 0.02, 0.06))


def test_a_feed_prepares_what_it_publishes_however_many_read_it():
    before = BEFORE._replace(feed=FEED)
    after = Usage(20.0, 200.0, 18.0, 6.0, 12.0, 0, FEED._replace(cpu_s=9.0, samples=600.0), 1.0)
    assert costs(before, after) == pytest.approx((10.0, 0.03, 0.07, 0.06))


@pytest.mark.parametrize(("old", "new"), [(FEED, None), (None, FEED), (FEED, FEED._replace(pid=8))])
def test_a_feeder_that_is_new_or_does_not_answer_tells_no_preparation(
    old: FeedUsage | None, new: FeedUsage | None
):
    after = Usage(20.0, 200.0, 18.0, 6.0, 12.0, 0, new, 1.0)
    assert costs(BEFORE._replace(feed=old), after) == pytest.approx((10.0, math.nan, 0.07, 0.06), nan_ok=True)


def test_without_workers_the_wait_is_that_for_preparation():
    after = Usage(20.0, 200.0, 18.0, 6.0, 12.0, 0, None, 1.0)
    assert costs(BEFORE, after) == pytest.approx((10.0, 0.04, 0.03, 0.06))


def test_what_no_sample_tells_is_not_a_number():
    assert all(map(math.isnan, costs(BEFORE, BEFORE._replace(time_s=11.0))[1:]))
    other = BEFORE._replace(time_s=11.0, samples=200.0, feed=FEED)
    assert math.isnan(costs(BEFORE._replace(feed=FEED._replace(pid=8)), other).preparation_s)


READS = """
import penstock, numpy as np, time
def make_loader(): return penstock.ArraySource(np.arange(10_000), batch_size=10)
with penstock.share(make_loader, "numbers", window="1MiB") as loader:
    while True:
        for batch in loader: time.sleep(0.001)
"""


@contextmanager
def running(folder: Path, script: str) -> Iterator[Callable[[], Usage]]:
    """A run of a script; yields what looks at it."""
    plan = RunPlan(command=(sys.executable, "-c", script), name="run", directory="/")
    with Store.open(folder / "store") as store:
        (run,) = store.add(GroupPlan(name="group", runs=(plan,)))
        with Launcher(store) as launcher:
            launcher.start(run, listeners=())
            eventually(lambda: store.run(run.id).keeper)
            yield lambda: usage_of(store, store.run(run.id), penstock.feeds(), on_gpus=False)
    penstock.stop("numbers")
    nothing_is_left(folder)


def test_a_look_tells_what_a_run_and_its_feed_have_used(tmp_path: Path):
    with running(tmp_path, READS) as look_at:
        before = eventually(lambda: (now := look_at()).samples and now.feed and now)
        after = eventually(lambda: (now := look_at()).samples > 2 * before.samples and now)
        assert before.feed and after.feed
        assert (after.feed.name, after.feed.samples_per_epoch) == ("numbers", 10_000)
        assert after.feed.cpu_s >= before.feed.cpu_s > 0 and after.feed.samples > before.feed.samples
        assert after.own_cpu_s >= before.own_cpu_s > 0
        assert after.loop_s > before.loop_s and after.wait_s <= after.loop_s
        assert after.memory_bytes and after.memory_bytes > 10 << 20


def test_the_most_memory_and_the_newest_counters_are_those_of_the_whole_series(tmp_path: Path):
    with Store.open(tmp_path / "store") as store:
        (run,) = store.add(
            GroupPlan(name="g", runs=(RunPlan(command=("true",), name="r", directory="/", gpus=2),))
        )
        writer = SeriesWriter(points_file(store.folder_of(run.id), "sampler"))
        for second, used in enumerate((4e9, 8e9, 6e9)):
            writer.add("gpu.memory_bytes", used, 1000.0 + 60 * second)
            writer.add("feed.samples", 100.0 * second, 1000.0 + 60 * second)
        writer.flush()
        found = usage_of(store, run, [], on_gpus=True)
        assert (found.memory_bytes, found.feed) == (4_000_000_000, None)  # of each of its two GPUs
        assert found.samples == pytest.approx(200 + 100 / 60)  # carried on for a second at most
        writer.add("gpu.memory_bytes", 1e10, 1200.0)
        writer.close()
        assert usage_of(store, run, [], on_gpus=True).memory_bytes == 5_000_000_000


def test_host_memory_is_never_taken_for_that_of_a_gpu(tmp_path: Path):
    with Store.open(tmp_path / "store") as store:
        (run,) = store.add(GroupPlan(name="g", runs=(RunPlan(command=("true",), name="r", directory="/"),)))
        writer = SeriesWriter(points_file(store.folder_of(run.id), "sampler"))
        writer.add("proc.pss_bytes", 3e9, 1000.0)
        writer.close()
        assert usage_of(store, run, [], on_gpus=True).memory_bytes is None
        assert usage_of(store, run, [], on_gpus=False).memory_bytes == 3_000_000_000
