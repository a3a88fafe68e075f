"""No run waits for itself: the rule on a model of runs and feeds, and on real ones."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.feed.statistics import FeederStatistics, TrainerStatistics
from penstock.feed.trainer.deadlock import Deadlock, DeadlockWatch, cycle, waits

FEED = FeederStatistics("", 9)
TRAINER = TrainerStatistics(0, 1, False, 0, 1, 0, "reading", 0, 0, 0, 0, 0.0, "")


class Model:
    """Runs that read feeds block by block, second by second; a feed goes on while its window has room.

    Args:
        runs: Of each run, the feeds that its loaders read, and what it does, over and over: takes so many blocks
            by a loader, then computes for so many seconds.
    """

    def __init__(self, windows: list[int], runs: list[tuple[list[int], list[tuple[int, int, int]]]]) -> None:
        self.windows = windows  # of each feed, in blocks
        self.heads = [0] * len(windows)
        self.loaders: list[dict[str, Any]] = []
        self.runs: list[dict[str, Any]] = []
        for pid, (feeds, program) in enumerate(runs, 1):
            mine = [
                {"pid": pid, "feed": feed, "at": 0, "wait_s": 0, "watch": self.watch(feed, pid)} for feed in feeds
            ]
            self.loaders += mine
            steps = [(mine[loader % len(mine)], blocks, busy_s) for loader, blocks, busy_s in program]
            self.runs.append(
                {"program": steps, "step": 0, "left": steps[0][1], "busy": 0, "waits": None, "for": 0}
            )
        self.now_s = 0.0

    def watch(self, feed: int, pid: int) -> DeadlockWatch:
        return DeadlockWatch(self.statistics, f"{feed}", pid, lambda: self.now_s)

    def members(self, feed: int) -> list[dict[str, Any]]:
        return [each for each in self.loaders if each["feed"] == feed]

    def holder(self, feed: int) -> dict[str, Any]:
        return min(self.members(feed), key=lambda each: each["at"])

    def is_full(self, feed: int) -> bool:
        return self.heads[feed] - self.holder(feed)["at"] >= self.windows[feed]

    def take(self, loader: dict[str, Any]) -> bool:
        feed = loader["feed"]
        if feed is not None and loader["at"] == self.heads[feed]:
            if self.is_full(feed):
                return False
            self.heads[feed] += 1
        loader["at"] += 1
        return True

    def second(self) -> None:
        """Let each run do what it can in a second."""
        self.now_s += 1
        for run in self.runs:
            if run["busy"]:
                run["busy"] -= 1
                continue
            run["waits"] = None
            for _ in range(5):  # blocks in a second
                loader, _, busy_s = run["program"][run["step"]]
                if run["left"] and not self.take(loader):
                    run["waits"] = loader
                    loader["wait_s"] += 1
                    break
                run["left"] -= 1
                if run["left"] <= 0:
                    run["busy"] = busy_s
                    run["step"] = (run["step"] + 1) % len(run["program"])
                    run["left"] = run["program"][run["step"]][1]
                    if busy_s:
                        break
            run["for"] = run["for"] + 1 if run["waits"] else 0

    def waits(self, loader: dict[str, Any] | None) -> bool:
        return loader is not None and loader["at"] == self.heads[loader["feed"]] and self.is_full(loader["feed"])

    def stuck(self) -> set[int]:
        """Return the runs that will never go on, by number: going by what each really does, not by statistics."""
        live = {i for i, run in enumerate(self.runs) if not self.waits(run["waits"])}
        while True:
            more = {
                i
                for i, run in enumerate(self.runs)
                if i not in live
                and all(
                    each["pid"] - 1 in live and each["pid"] - 1 != i
                    for each in self.members(run["waits"]["feed"])
                    if each["at"] == self.holder(run["waits"]["feed"])["at"]
                )
            }
            if not more:
                return set(range(len(self.runs))) - live
            live |= more

    def in_cycles(self) -> set[int]:
        """Return the stuck runs that wait for themselves, by others or not; the rest wait for them."""
        stuck = self.stuck()
        reached: dict[int, set[int]] = {}
        for i in stuck:
            feed = self.runs[i]["waits"]["feed"]
            first = self.holder(feed)["at"]
            reached[i] = {each["pid"] - 1 for each in self.members(feed) if each["at"] == first} & stuck
        for _ in stuck:
            for found in reached.values():
                found.update(*(reached[i] for i in set(found)))
        return {i for i, found in reached.items() if i in found}

    def statistics(self) -> list[FeederStatistics]:
        found: list[FeederStatistics] = []
        for feed, head in enumerate(self.heads):
            members = self.members(feed)
            if not members:
                continue
            waited_on = any(run["waits"] and run["waits"]["feed"] == feed for run in self.runs)
            trainers = tuple(
                msgspec.structs.replace(
                    TRAINER,
                    pid=each["pid"],
                    taken=each["at"],
                    lag_samples=head - each["at"],
                    held_bytes=head - each["at"],
                    wait_s=each["wait_s"],
                )
                for each in members
            )
            by = self.holder(feed)["pid"] if waited_on and self.is_full(feed) else None
            name = str(feed)
            found.append(msgspec.structs.replace(FEED, name=name, blocks=head, held_back_by=by, trainers=trainers))
        return found


PROGRAM = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 9), st.sampled_from([0, 0, 1, 4, 60, 300])), min_size=1, max_size=4
)


@given(
    st.lists(st.integers(1, 12), min_size=3, max_size=3),
    st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=4), PROGRAM), min_size=1, max_size=4),
)
def test_no_runs_wait_for_each_other_for_ten_seconds_and_nobody_who_need_not_leaves_a_feed(windows, runs):
    model = Model(windows, runs)
    waited_s: Counter[int] = Counter()
    for _ in range(150):
        model.second()
        for i, run in enumerate(model.runs):
            if run["for"] < 3:
                continue
            left = None
            try:
                run["waits"]["watch"].look()
            except Deadlock as deadlock:
                left = deadlock
            if left:
                assert i in model.stuck(), f"it was no cycle: {left}"
                run["waits"]["feed"] = run["waits"] = None
        waited_s = Counter({i: waited_s[i] + 1 for i in model.in_cycles()})
        assert max(waited_s.values(), default=0) < 10


def test_a_run_that_validates_for_minutes_is_waited_for():
    """Both are a window ahead on one feed, as in a cycle, but one of them will go on by itself."""
    ahead = [([0, 1], [(0, 9, 0), (1, 1, 0)]), ([0, 1], [(1, 8, 300), (0, 1, 0)])]
    model = Model([8, 8], ahead)
    for _ in range(200):
        model.second()
        if model.runs[0]["for"] > 2:
            model.runs[0]["waits"]["watch"].look()
    assert model.runs[0]["for"] > 100


def test_those_who_wait_for_one_that_waits_for_itself_stay():
    ahead = [([0, 1], [(0, 9, 0), (1, 1, 0)]), ([0, 1], [(1, 9, 0), (0, 1, 0)]), ([0], [(0, 1, 0)])]
    model = Model([8, 8], ahead)
    before: list[FeederStatistics] = []
    for _ in range(12):
        before = model.statistics()
        model.second()
    found = waits(before, model.statistics())
    assert {wait.pid: wait.holder_pid for wait in found} == {1: 2, 2: 1, 3: 2}
    assert [wait.pid for wait in cycle(found, 1, "0")] == [wait.pid for wait in cycle(found, 2, "1")]
    assert cycle(found, 3, "0") == []


@pytest.mark.parametrize("changed", [{"taken": 1}, {"lag_samples": 1}, {"wait_s": 0.0}])
def test_a_trainer_that_moves_or_does_not_say_that_it_waits_is_in_no_cycle(changed):
    holds = msgspec.structs.replace(TRAINER, pid=2, held_bytes=8)
    one, other = (msgspec.structs.replace(TRAINER, pid=1, wait_s=wait_s) for wait_s in (3.0, 5.0))
    feed = msgspec.structs.replace(FEED, name="x", held_back_by=2)
    before = [msgspec.structs.replace(feed, trainers=(one, holds))]
    assert waits(before, [msgspec.structs.replace(feed, trainers=(other, holds))])
    other = msgspec.structs.replace(other, **changed)
    assert not waits(before, [msgspec.structs.replace(feed, trainers=(other, holds))])
    assert not waits(before, [msgspec.structs.replace(feed, blocks=1, trainers=(other, holds))])


ROWS = 400


def make_rows() -> penstock.ArraySource:
    return penstock.ArraySource({"id": np.arange(ROWS), "x": np.zeros((ROWS, 1024), np.float32)}, batch_size=10)


def test_two_attached_loaders_of_one_process_that_wait_for_each_other_are_told_and_go_on(serve):
    serve(make_rows(), window="512KiB")
    with ThreadPoolExecutor() as thread:  # which has ended, and reads no more
        looked_at = thread.submit(penstock.attach, "feed").result()
        thread.submit(lambda: next(iter(looked_at))).result()
    with penstock.attach("feed") as read:
        batches, ids = iter(read), list[int]()
        says = "waits for another loader of this process .* close one"
        with pytest.raises(penstock.errors.WindowHeld, match=says):
            ids.extend(int(i) for batch in batches for i in batch["id"])
        looked_at.close()
        ids.extend(int(i) for batch in batches for i in batch["id"])
    assert sorted(ids) == list(range(ROWS))


@pytest.mark.whole
@pytest.mark.usefixtures("forks_feeders")
def test_two_loaders_of_one_process_do_not_wait_for_each_other_and_no_sample_is_lost(capsys):
    join = partial(penstock.share, make_rows, "feed", 10, window="512KiB", segments=1, linger=0.2)
    with join() as read, join() as looked_at:
        look = iter(looked_at)
        first = [int(i) for i in next(look)["id"]]
        epochs = [[int(i) for batch in read for i in batch["id"]] for _ in range(2)]
        rest = [int(i) for batch in look for i in batch["id"]]
        again = [int(i) for batch in looked_at for i in batch["id"]]
        assert read.name != looked_at.name == "feed"
        assert read.statistics().failovers == 0
    for epoch in (*epochs, first + rest, again):
        assert sorted(epoch) == list(range(ROWS))
    begun = (first + rest).index(epochs[0][0])
    assert epochs[0][: ROWS - begun] == (first + rest)[begun:], "the other feed has the same order"
    said = [line for line in capsys.readouterr().err.splitlines() if "of its own" in line]
    assert len(said) == 1
    assert "feed 'feed' waits for another loader of this process" in said[0]
