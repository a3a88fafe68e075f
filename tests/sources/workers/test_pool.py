"""Worker processes of this machine pass the contract of workers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.forked import eventually

from penstock.sources.workers.pool import WorkerPool
from penstock.testing import workers

ROOT = Path(__file__).parents[3]


@pytest.mark.usefixtures("new_pythons")
class TestWorkerPool(workers.WorkersContract):
    def make(self, count: int) -> WorkerPool[tuple[str, str], str]:
        return WorkerPool(count, workers.__name__)


@contextmanager
def on_one_core(*words: str) -> Generator[tuple[int, int]]:
    """Yield the pids of a process of a session of its own, and of its worker, which computes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.sources.workers.yielding", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        assert os.getsid(worker) == process.pid
        assert os.getpgid(worker) == worker
        yield process.pid, worker


def share(of: int, beside: int) -> float:
    """What one of two processes that compute on one core has of what both have."""

    def used_s() -> list[float]:
        return [psutil.Process(pid).cpu_times().user for pid in (of, beside)]

    eventually(lambda: min(used_s()) > 0.2)  # both compute
    first = used_s()
    eventually(lambda: sum(used_s()) - sum(first) >= 1.5)
    its, other = (last - before for before, last in zip(first, used_s(), strict=True))
    return its / (its + other)


@pytest.mark.usefixtures("new_pythons")
def test_workers_of_a_process_that_yields_yield_too() -> None:
    with on_one_core("5") as (_, parted), on_one_core("0") as (_, root):
        assert share(parted, root) <= 0.35


@pytest.mark.usefixtures("new_pythons")
def test_workers_yield_to_the_process_that_they_work_for() -> None:
    with on_one_core("0", "both") as (feeder, worker):
        assert share(worker, feeder) <= 0.35
