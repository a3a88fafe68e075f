"""Worker processes and their tasks."""

from __future__ import annotations

import os

from tests.sources.images import stepping

from penstock.sources.images.pool import WorkerPool


def test_a_worker_asks_for_the_next_tasks_data_before_it_does_the_one_at_hand() -> None:
    reads, writes = os.pipe()
    pool: WorkerPool[str, str] = WorkerPool(1, stepping.__name__)
    try:
        pool.prepare((writes,), [writes])
        for number, task in enumerate("abc"):
            pool.submit(number, task)
        assert [pool.result(number) for number in range(3)] == ["A", "B", "C"]
    finally:
        pool.close()
        os.close(writes)
    with open(reads) as log:
        steps = log.read().split("\n")
    assert steps.index("ask b") < steps.index("do a")
    for task in "abc":
        assert steps.count(f"ask {task}") == 1
        assert steps.count(f"do {task}") == stepping.STEPS
        assert steps.index(f"ask {task}") < steps.index(f"do {task}")
