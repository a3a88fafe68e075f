"""The contract of workers: each task is done in the end, whatever becomes of the worker that has it."""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Lock

import pytest

from penstock.errors import BadSetting, SourceError
from penstock.sources.workers import Steps, Workers
from penstock.sources.workers.process import serve

_STEPS = 3


def worker(log: str) -> Callable[[tuple[str, str]], Steps[str]]:
    """Return what does the suite's tasks: (verb, text); its steps are appended to a log."""

    def work(task: tuple[str, str]) -> Steps[str]:
        verb, text = task
        with open(log, "a") as file:
            print("ask", text, file=file, flush=True)
            yield
            for _ in range(_STEPS):
                if verb == "refuse":
                    raise SourceError(f"{text} is refused")
                if verb == "die" or (verb == "die once" and not os.path.exists(text)):
                    Path(text).touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                if verb == "wait":
                    time.sleep(0.1)
                print("do", text, file=file, flush=True)
                yield
        return text.upper()

    return work


def main(fd: int) -> None:
    """Be a worker process of the suite."""
    serve(fd, worker)


class WorkersContract(ABC):
    """Tests of workers; a subclass named ``Test...`` runs them."""

    @abstractmethod
    def make(self, count: int) -> Workers[tuple[str, str], str]:
        """Make ``count`` workers that do tasks by ``penstock.testing.workers.worker``, not prepared yet."""

    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        return tmp_path / "log"

    def prepared(self, count: int, log: Path) -> closing[Workers[tuple[str, str], str]]:
        workers = self.make(count)
        workers.prepare((str(log),), [])
        return closing(workers)

    def test_each_result_is_that_of_its_number_in_whatever_order_it_is_asked_for(self, log: Path) -> None:
        with self.prepared(2, log) as workers:
            for number in range(20):
                workers.submit(number, ("do", f"task {number}"))
            assert [workers.result(n) for n in reversed(range(20))] == [f"TASK {n}" for n in reversed(range(20))]

    def test_what_a_task_raises_is_its_own_and_others_go_on(self, log: Path) -> None:
        with self.prepared(1, log) as workers:
            for number, verb in enumerate(("do", "refuse", "do")):
                workers.submit(number, (verb, "x"))
            assert workers.result(2) == "X"
            with pytest.raises(SourceError, match="x is refused"):
                workers.result(1)
            assert workers.result(0) == "X"

    def test_a_task_whose_worker_dies_is_done_again(self, log: Path, tmp_path: Path) -> None:
        with self.prepared(2, log) as workers:
            tasks = [("die once", str(tmp_path / str(number))) for number in range(4)]
            for number, task in enumerate(tasks):
                workers.submit(number, task)
            assert [workers.result(number) for number in range(4)] == [text.upper() for _, text in tasks]

    def test_a_task_that_kills_each_worker_is_an_error_and_others_go_on(self, log: Path, tmp_path: Path) -> None:
        with self.prepared(2, log) as workers:
            workers.submit(0, ("die", str(tmp_path / "dead")))
            workers.submit(1, ("do", "alive"))
            with pytest.raises(SourceError, match="died at one block"):
                workers.result(0)
            assert workers.result(1) == "ALIVE"

    def test_after_settling_nothing_is_written_and_tasks_go_on(self, log: Path) -> None:
        with self.prepared(1, log) as workers:
            for number in range(6):
                workers.submit(number, ("wait", str(number)))
            workers.settle()
            written = log.read_text()
            time.sleep(0.3)
            assert log.read_text() == written
            assert "ask 5" not in written
            workers.submit(0, ("do", "again"))
            assert workers.result(0) == "AGAIN"

    def test_closed_workers_write_no_more_and_new_tasks_have_new_ones(self, log: Path) -> None:
        with self.prepared(2, log) as workers:
            workers.submit(0, ("wait", "x"))
            workers.close()
            written = log.read_text() if log.exists() else ""
            time.sleep(0.3)
            assert (log.read_text() if log.exists() else "") == written
            workers.submit(0, ("do", "again"))
            assert workers.result(0) == "AGAIN"

    def test_the_next_tasks_data_are_asked_for_before_the_one_at_hand_is_done(self, log: Path) -> None:
        with self.prepared(1, log) as workers:
            for number, text in enumerate("abc"):
                workers.submit(number, ("do", text))
            assert [workers.result(number) for number in range(3)] == ["A", "B", "C"]
        steps = log.read_text().splitlines()
        assert steps.index("ask b") < steps.index("do a")
        for text in "abc":
            assert (steps.count(f"ask {text}"), steps.count(f"do {text}")) == (1, _STEPS)

    def test_what_cannot_travel_is_refused(self) -> None:
        with closing(self.make(1)) as workers, pytest.raises(BadSetting, match="cannot be sent"):
            workers.prepare((Lock(),), [])

    def test_workers_that_cannot_start_are_an_error(self, tmp_path: Path) -> None:
        with closing(self.make(1)) as workers:
            workers.prepare(("too", "many"), [])
            workers.submit(0, ("do", "x"))
            with pytest.raises(SourceError, match="cannot start"):
                workers.result(0)
