"""A far side beside workers: as fast as the best split of tasks, each done once, whatever becomes of it."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.workers import far_worker, liar, simulated
from tests.sources.workers.simulated import NAME, Clock, Trouble

from penstock.sources.workers import far as module
from penstock.sources.workers.far import FarSide
from penstock.sources.workers.pool import WorkerPool
from penstock.testing import workers

TASKS = 24


class TestFarSide(workers.WorkersContract):
    def make(self, count: int) -> WorkerPool[tuple[str, str], str]:
        return WorkerPool(count, workers.__name__, FarSide(far_worker.__name__, "the far side"))


class Garbage:
    """A connection on which no message can be read."""

    def __init__(self, connection: Any) -> None:
        self.fileno, self.poll, self.close = connection.fileno, connection.poll, connection.close

    def recv(self) -> Any:
        raise KeyError("it is a test")


def pool(side: str = far_worker.__name__, share: float | None = 1.0) -> WorkerPool[tuple[str, str], str]:
    return WorkerPool(1, workers.__name__, FarSide(side, "the far side", share))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Any]:
    """Make pools that are closed when the test ends."""
    pools = list[Any]()

    def make(*how: Any) -> Any:
        pools.append(pool(*how))
        pools[-1].prepare((str(tmp_path / "log"),), [])
        return pools[-1]

    yield make
    for each in pools:
        each.close()


def results(its: Any, count: int = TASKS, verb: str = "do") -> None:
    """Have it do tasks whose numbers nobody had."""
    first = its.__dict__.setdefault("first", 0)
    its.first += count
    texts = {number: f"task {number}" for number in range(first, first + count)}
    for number, text in texts.items():
        its.submit(number, (verb, text))
    assert [its.result(number) for number in texts] == [text.upper() for text in texts.values()]


def said(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capfd.readouterr().err.splitlines() if "is left out" in line]


def test_what_it_answers_twice_or_in_another_order_or_unasked_counts_once(opened, capfd):
    its = opened(liar.__name__)
    for turn in range(1, 4):
        results(its)
        its.settle()
        assert its.far.done == turn * TASKS and not said(capfd)


def test_its_first_death_is_not_held_against_it_and_its_second_is_told_once(opened, capfd, tmp_path):
    its = opened()
    results(its)
    for deaths in (1, 2):
        before = its.far.done
        os.kill(its.far.worker.pid, signal.SIGKILL)
        results(its)
        results(its)
        assert (its.far.done > before, bool(its.far.lost)) == (deaths == 1, deaths == 2)
    assert ["killed" in line or "SIGKILL" in line for line in said(capfd)] == [True]
    assert its.capacity == 2 and its.far.worker is None


def test_a_task_that_kills_the_far_side_is_the_workers_and_is_not_held_against_it(opened, tmp_path):
    its = opened()
    path = str(tmp_path / "touched")
    its.submit(0, ("die once", path))
    assert its.result(0) == path.upper() and not its.far.lost and not its._deaths


def test_one_that_stops_is_ended_before_its_tasks_are_done_again(opened, capfd, monkeypatch):
    monkeypatch.setattr(module, "_HANGS_S", 0.5)
    its = opened()
    results(its)
    pid = its.far.worker.pid
    os.kill(pid, signal.SIGSTOP)
    results(its)
    assert not os.path.exists(f"/proc/{pid}")
    assert its.far.lost and ["has not answered" in line for line in said(capfd)] == [True]


@pytest.mark.parametrize("settles", [False, True])
def test_one_that_was_stopped_together_with_its_pool_goes_on_with_it(opened, capfd, settles):
    its = opened()
    results(its)
    pid, workers = its.far.worker.pid, [each.pid for each in its._workers]
    os.kill(pid, signal.SIGSTOP)
    its.submit(100, ("do", "x"))
    its._hand_over(its.far)
    its.far._hangs_s = time.monotonic() - 2 * module._STOPPED_S  # as after some seconds in which nobody ran
    awakes = threading.Timer(0.1, os.kill, (pid, signal.SIGCONT))
    awakes.start()
    if settles:
        its.settle()
    else:
        assert its.result(100) == "X"
    awakes.join()
    assert not its.far.lost and not said(capfd)
    assert (its.far.worker.pid, [each.pid for each in its._workers]) == (pid, workers)


def test_one_that_stops_before_it_is_ready_keeps_nobody_waiting(opened, capfd):
    its = opened(far_worker.__name__, None)
    its.submit(0, ("wait", "x"))
    its.submit(1, ("wait", "y"))
    its.submit(2, ("wait", "z"))
    its._hand_over(its.far)  # as a result is waited for
    os.kill(its.far.worker.pid, signal.SIGSTOP)
    assert [its.result(number) for number in range(3)] == ["X", "Y", "Z"]
    assert not said(capfd)


def test_one_that_never_becomes_ready_is_told_and_left_out(opened, capfd, monkeypatch):
    monkeypatch.setattr(module, "_STARTS_S", 0.3)
    its = opened(far_worker.__name__, 1.0)
    its.submit(0, ("do", "x"))
    its._hand_over(its.far)
    os.kill(its.far.worker.pid, signal.SIGSTOP)
    assert its.result(0) == "X"
    assert ["has not answered" in line for line in said(capfd)] == [True]


def test_one_that_cannot_be_spawned_is_told_and_left_out(opened, capfd, monkeypatch):
    def refuses(*_: Any) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    its = opened()
    monkeypatch.setattr(module, "start_process", refuses)
    results(its)
    assert ["cannot be started: Resource" in line for line in said(capfd)] == [True]


def test_what_is_no_message_is_its_end(opened):
    its = opened()
    results(its)
    worker = its.far.worker
    for number in range(100, 104):
        its.submit(number, ("wait", "x"))
    its._hand_over(its.far)
    its.far.worker.connection = Garbage(worker.connection)
    assert [its.result(number) for number in range(100, 104)] == ["X"] * 4


def test_one_that_cannot_start_is_told_once(tmp_path, capfd):
    its = pool()
    its.prepare(("too", "many"), [])
    with closing(its):
        its.far.start(its._setup, [])
        its.prepare((str(tmp_path / "log"),), [])  # which only workers start with
        results(its)
        results(its)
    assert its.far.lost and len(said(capfd)) == 1


def test_after_settling_it_writes_nothing_and_goes_on(opened, tmp_path):
    its = opened()
    results(its)
    for number in range(TASKS):
        its.submit(number, ("wait", f"later {number}"))
    its.settle()
    written = (tmp_path / "log").read_text()
    time.sleep(0.3)
    assert (tmp_path / "log").read_text() == written and "later 23" not in written
    results(its)


def test_large_tasks_that_a_stopped_one_does_not_read_are_the_workers(opened, monkeypatch):
    monkeypatch.setattr(module, "_TIMEOUT", module.struct.pack("ll", 0, 200_000))
    monkeypatch.setattr(module, "_HANGS_S", 0.5)
    its = opened()
    results(its, 1)
    os.kill(its.far.worker.pid, signal.SIGSTOP)
    text = "x" * (4 << 20)
    its.submit(100, ("do", text))
    assert its.result(100) == text.upper() and its.far.lost


def against_the_best_split(worker: simulated.Rate, far: simulated.Rate, seconds: float, **how: float) -> float:
    """Time that is taken, of that of the best fixed share; the far side has 4 ms a batch besides."""
    blocks = max(100, int((2 * worker(0) + far(0)) * seconds / simulated.PARTS))
    return simulated.against_the_best_split(partial(Clock, worker, far, 0.004, **how), blocks)


@pytest.mark.parametrize("images_per_s", [500, 1000, 2000, 4000, 8000])
@pytest.mark.parametrize("far_per_s", [500, 1000, 2000, 4000, 8000])
def test_it_is_as_fast_as_the_best_split(images_per_s, far_per_s):
    assert against_the_best_split(lambda _: images_per_s / 64, lambda _: far_per_s / 32, 10) <= 1.05


@pytest.mark.parametrize("far_per_s", [1000, 4000])
@pytest.mark.parametrize("steps", ["workers", "far side"])
def test_it_follows_steps_of_four_times_and_a_quarter(far_per_s, steps):
    def stepping(rate: float, *, does: bool) -> simulated.Rate:
        return (lambda now_s: rate * (1, 4, 1, 0.25)[int(now_s / 5) % 4]) if does else lambda _: rate

    worker, far = stepping(500 / 64, does=steps == "workers"), stepping(far_per_s / 32, does=steps == "far side")
    assert against_the_best_split(worker, far, 40) <= 1.05


def test_a_first_batch_that_takes_long_is_not_what_the_next_are_judged_by():
    """Libraries load with it what they need."""
    assert against_the_best_split(lambda _: 540 / 64, lambda _: 6000 / 32, 40, warm_s=3.0) <= 1.05


@given(
    st.floats(1, 100),
    st.floats(1, 1000),
    st.integers(1, 4),
    st.sampled_from([None, 0.3, 1.0]),
    st.dictionaries(
        st.integers(1, 40), st.sampled_from(["die", "hang", "twice", "backwards", "fail"]), max_size=4
    ),
    st.integers(0, 5),
)
def test_each_task_is_done_whatever_becomes_of_a_far_side(rate, far_rate, workers, share, troubles, settles):
    clock = Clock(lambda _: rate, lambda _: far_rate, troubles=Trouble(troubles))
    with simulated.on(clock):
        its: WorkerPool[str, Any] = WorkerPool(workers, "a worker", FarSide(NAME, NAME, share))
        for first in range(0, 3 * TASKS, TASKS):
            for number in range(first, first + TASKS):
                its.submit(number, f"part {number}")
            done = range(first, first + (TASKS if first == 2 * TASKS else settles))
            assert [its.result(number)[0] for number in done] == [f"part {number}" for number in done]
            its.settle()
            assert not clock.writing()
        met = clock.troubles.met
        assert its.far is not None
        assert not its.far.lost or {"hang", "fail"} & {*met} or met.count("die") > 1
