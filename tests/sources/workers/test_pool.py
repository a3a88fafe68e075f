"""Worker processes of this machine pass the contract of workers."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
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


@pytest.mark.usefixtures("new_pythons")
def test_workers_of_a_process_that_yields_yield_too() -> None:
    with ExitStack() as stack:

        def start(nice: int) -> int:
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.sources.workers.yielding", str(nice)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    cwd=ROOT,
                    start_new_session=True,
                )
            )
            assert process.stdout is not None
            worker = int(process.stdout.readline())
            assert os.getsid(worker) == process.pid
            assert os.getpgid(worker) == worker
            return worker

        def used_s() -> list[float]:
            return [psutil.Process(worker).cpu_times().user for worker in (parted, root)]

        parted, root = start(5), start(0)
        eventually(lambda: min(used_s()) > 0.2)  # both compute
        first = used_s()
        eventually(lambda: sum(used_s()) - sum(first) >= 1.5)
        yields, other = (last - before for before, last in zip(first, used_s(), strict=True))
    assert yields <= 0.35 * (yields + other)
