"""Runs of unlike speed part, come back where that was wrong, and come together: whole epochs in one order."""

from __future__ import annotations

import fcntl
import functools
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.feed.reading import ids_of
from tests.forked import eventually
from tests.support.quick_pace import quickened

import penstock
from penstock.feed.feeder import family
from penstock.feed.launch.feeds import stop
from penstock.feed.trainer import elsewhere

SAMPLES = 4_000
pytestmark = pytest.mark.usefixtures("forks_feeders_with_torch")
share = functools.partial(penstock.share, linger=0.3, window="64KiB")


def make(samples: int = SAMPLES) -> Any:
    quickened()
    return penstock.ArraySource({"id": np.arange(samples)}, batch_size=10, segments=4, seed=3)


class Locked(penstock.ArraySource):
    """Whose blocks take a lock for a time, while a file is there: all feeds of it have one rate together."""

    def __init__(self, lock: str, takes_s: float) -> None:
        super().__init__({"id": np.arange(SAMPLES)}, batch_size=10, segments=4, seed=3)
        self._lock, self._takes_s = Path(lock), takes_s

    def open(self, *args: Any) -> Iterator[Any]:
        for block in super().open(*args):
            if self._lock.exists():
                with self._lock.open() as file:
                    fcntl.flock(file, fcntl.LOCK_EX)
                    time.sleep(self._takes_s)
            yield block


def make_locked(lock: str, takes_s: float) -> Any:
    quickened()
    return Locked(lock, takes_s)


def make_without_memory() -> Any:
    family.free_memory_bytes = lambda: 0  # type: ignore[attr-defined]
    return make()


def make_wide() -> Any:
    """Of which the window holds a quarter: who comes anew is held back, too."""
    quickened()
    data = {"id": np.arange(SAMPLES), "x": np.zeros((SAMPLES, 60), np.uint8)}
    return penstock.ArraySource(data, batch_size=10, segments=4, seed=3)


def make_of(file: str) -> Any:
    return make()


class Run(threading.Thread):
    """Trains on a feed: takes a batch each ``step_s``; 0 for never, until that is changed.

    Behind each epoch it looks at all that its loader for validation gives.
    """

    def __init__(self, loader: penstock.Loader, step_s: float, validates: penstock.Loader | None = None) -> None:
        super().__init__(daemon=True)
        self.loader, self.step_s, self.ends = loader, step_s, False
        self.validates, self.validated = validates, list[list[int]]()
        self.epochs: list[list[int]] = []  # those it has read whole
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            while not self.ends:
                taken = list[Any]()
                for batch in self.loader:
                    taken.append(batch)
                    if not self.ends:
                        time.sleep(self.step_s)
                    while not self.step_s and not self.ends:
                        time.sleep(0.01)
                self.epochs.append(ids_of(taken))
                if self.validates and not self.ends:
                    self.validated.append(ids_of([*self.validates]))
        except BaseException as error:
            self.error = error


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start runs, which end with the test; each has read each epoch whole by then."""
    monkeypatch.setattr(elsewhere, "_said_s", [float("-inf")])  # another test may have parted within the minute
    with ExitStack() as stack:
        started = list[Run]()

        def start(
            step_s: float, made: Any = make, name: str = "root", validates: Any = None, **options: Any
        ) -> Run:
            beside = validates and stack.enter_context(share(validates, "validation", 10))
            started.append(Run(stack.enter_context(share(made, name, 10, **options)), step_s, beside))
            return started[-1]

        yield start
        for run in started:
            run.ends = True
        for run in started:
            run.join(60)
            assert not run.is_alive()
            assert run.error is None
            assert all(sorted(epoch) == list(range(run.loader.samples)) for epoch in run.epochs)
    # One may have been asked to start a feed just before its end, which goes on in a thread.
    eventually(lambda: not [each for each in threading.enumerate() if each.name == "penstock-prepare"])


def parted(*runs: Run) -> bool:
    return all("-pace-" in run.loader.name for run in runs)


def said(capfd: Any, words: str) -> None:
    """Wait until these words have been printed on standard error."""
    heard = list[str]()
    eventually(lambda: heard.append(capfd.readouterr().err) or words in "".join(heard))


def refused() -> str:
    return next((feed.family.refused for feed in penstock.feeds() if feed.name == "root" and feed.family), "")


def test_a_fast_run_leaves_a_slow_one_amid_its_epoch_in_the_same_order(runs: Any, capfd: Any) -> None:
    slow, fast = runs(0.05), runs(0.005)
    eventually(lambda: parted(fast))
    slow.step_s = fast.step_s
    eventually(lambda: len(fast.epochs) >= 2 and len(slow.epochs) >= 1)
    assert slow.loader.name == "root"
    assert slow.epochs[0] == fast.epochs[0]
    said(capfd, 'times as fast as the slowest there (pace="together" keeps all on one feed)')


def test_together_nobody_leaves(runs: Any) -> None:
    slow, fast = runs(0.05, pace="together"), runs(0.005)
    taken = slow.loader.statistics().samples
    eventually(lambda: slow.loader.statistics().samples > taken + 1_000)
    assert [feed.name for feed in penstock.feeds()] == ["root"]
    assert penstock.feeds()[0].family.together == 'it was started with pace="together"'  # type: ignore[union-attr]
    assert not parted(fast)


def test_where_another_feed_takes_from_the_first_the_trial_fails_and_nobody_has_moved(
    runs: Any, tmp_path: Path, capfd: Any
) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    made = functools.partial(make_locked, str(lock), 0.012)
    slow, fast = runs(0.02, made), runs(0.002, made)
    eventually(refused)
    assert not parted(slow) and not parted(fast)
    eventually(lambda: [feed.name for feed in penstock.feeds()] == ["root"])
    assert "reads on" not in capfd.readouterr().err


def test_where_one_stops_the_others_leave_it_and_it_finds_its_feed_as_it_was(runs: Any, capfd: Any) -> None:
    stopped, other = runs(0.01), runs(0.01)
    eventually(lambda: stopped.loader.statistics().batches > 50)
    stopped.step_s = 0.0
    eventually(lambda: parted(other))
    said(capfd, "a run there takes nothing")
    read = len(other.epochs)
    eventually(lambda: len(other.epochs) > read + 1)
    stopped.step_s = 0.001
    eventually(lambda: stopped.epochs)
    assert stopped.epochs[0] == other.epochs[0]


def test_they_return_amid_an_epoch_where_both_feeds_go_slower_than_one_would(runs: Any, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    made = functools.partial(make_locked, str(lock), 0.03)  # slower than any run, also one that other tests delay
    slow, fast = runs(0.02, made), runs(0.002, made)
    eventually(lambda: parted(fast))
    lock.touch()
    eventually(lambda: not parted(fast))
    lock.unlink()
    slow.step_s = fast.step_s
    eventually(lambda: slow.epochs and fast.epochs)
    assert slow.epochs[0] == fast.epochs[0]


def test_when_the_slow_one_is_as_fast_all_are_on_one_feed_after_their_next_epoch(runs: Any) -> None:
    slow, fast = runs(0.02), runs(0.004)
    eventually(lambda: parted(fast))
    slow.step_s = fast.step_s
    eventually(lambda: slow.loader.name == fast.loader.name)
    eventually(lambda: len(penstock.feeds()) == 1)


def test_newcomers_read_the_feed_that_is_left_and_its_root_ends_it(runs: Any) -> None:
    slow, fast = runs(0.05), runs(0.005)
    eventually(lambda: parted(fast))
    slow.ends = True
    slow.join(60)
    slow.loader.close()
    eventually(lambda: [feed.name for feed in penstock.feeds()] == [fast.loader.name])
    with share(make, "root", 10) as late, penstock.attach("root", 10) as attached:
        assert late.name == attached.name == fast.loader.name
    fast.ends = True
    fast.join(60)
    stop("root")
    assert not penstock.feeds()


@pytest.mark.whole
def test_with_data_of_two_seconds_an_epoch_they_part_as_well(runs: Any) -> None:
    small = functools.partial(make, 400)
    slow, fast = runs(0.05, small), runs(0.004, small)
    eventually(lambda: parted(fast))
    read = len(fast.epochs), len(slow.epochs)
    eventually(lambda: len(fast.epochs) > read[0] + 5 and len(slow.epochs) > read[1] + 1)
    slow.step_s = fast.step_s
    eventually(lambda: slow.loader.name == fast.loader.name)


@pytest.mark.whole
def test_a_feed_for_validation_beside_it_is_read_whole_before_and_after_they_part(runs: Any) -> None:
    validation = functools.partial(make, 200)
    slow, fast = (runs(each, functools.partial(make, 800), validates=validation) for each in (0.03, 0.003))
    eventually(lambda: parted(fast))
    read = len(fast.validated), len(slow.validated)
    eventually(lambda: len(fast.validated) > read[0] + 2 and len(slow.validated) > read[1])
    assert all(sorted(each) == list(range(200)) for run in (slow, fast) for each in run.validated)


@pytest.mark.whole
def test_a_script_that_makes_its_loader_anew_each_epoch_leaves_anew(runs: Any) -> None:
    slow, names = runs(0.04, make_wide), list[str]()
    while sum("-pace-" in name for name in names) < 2:
        with share(make_wide, "root", 10) as loader:
            taken = list[Any]()
            for batch in loader:
                taken.append(batch)
                time.sleep(0.003)
            names.append(loader.name)
        assert sorted(ids_of(taken)) == list(range(SAMPLES))
    assert slow.loader.name == "root"


@pytest.mark.whole
def test_two_families_part_each_by_itself(runs: Any) -> None:
    slow, fast = runs(0.05), runs(0.005)
    other, equal = runs(0.02, name="other"), runs(0.02, name="other")
    eventually(lambda: parted(fast))
    eventually(lambda: fast.epochs)
    assert fast.loader.name.startswith("root-pace-")
    assert [slow.loader.name, other.loader.name, equal.loader.name] == ["root", "other", "other"]


@pytest.mark.whole
def test_without_memory_for_a_second_feed_nobody_leaves(runs: Any) -> None:
    slow, fast = runs(0.03, make_without_memory), runs(0.003, make_without_memory)
    other, also = runs(0.03, name="other"), runs(0.003, name="other")
    eventually(lambda: parted(also) and also.epochs)
    assert {feed.name for feed in penstock.feeds()} == {"root", "other", also.loader.name}
    assert not parted(slow) and not parted(fast) and not parted(other)


@pytest.mark.whole
def test_ranks_stay_and_a_single_run_leaves_them(runs: Any) -> None:
    with share(make, "root", 5, shard=(0, 2)) as zero, share(make, "root", 5, shard=(1, 2)) as one:
        fast = runs(0.005)
        ranks = [Run(each, 0.05) for each in (zero, one)]
        eventually(lambda: parted(fast))
        for rank in ranks:
            rank.step_s = 0.001
        eventually(lambda: all(rank.epochs for rank in ranks))
        assert zero.name == one.name == "root"
        assert sorted(ranks[0].epochs[0] + ranks[1].epochs[0]) == list(range(SAMPLES))
        for rank in ranks:
            rank.ends = True
        for rank in ranks:
            rank.join(60)
            assert rank.error is None


@pytest.mark.whole
def test_where_data_have_changed_nobody_leaves_and_status_says_so(runs: Any, tmp_path: Path, capfd: Any) -> None:
    data = tmp_path / "data"
    data.write_text("as it was")
    slow, fast = (
        runs(0.03, functools.partial(make_of, str(data))),
        runs(0.003, functools.partial(make_of, str(data))),
    )
    data.write_text("as it is now")
    eventually(lambda: refused() == "a trainer did not leave for it, and said why")
    said(capfd, "that reads other data")
    assert not parted(fast)
    slow.step_s = fast.step_s
    eventually(lambda: slow.epochs)
    assert not parted(slow)
