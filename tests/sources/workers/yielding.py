"""A process on one core that yields as much as it is told, and starts a worker, which computes; or both do."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from select import select

from penstock.linux.process import yield_to_others
from penstock.sources.workers import Steps
from penstock.sources.workers.pool import serve, start_process


def computing() -> Callable[[None], Steps[None]]:
    def steps(task: None) -> Steps[None]:
        while True:
            sum(range(100_000))
            yield

    return steps


def main(fd: int) -> None:
    """Compute as the worker."""
    serve(fd, computing)


if __name__ == "__main__":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if nice := int(sys.argv[1]):
        yield_to_others(nice)
    worker, connection = start_process("tests.sources.workers.yielding", [], {})
    connection.send_bytes(pickle.dumps(()))
    connection.send_bytes(pickle.dumps((1, None)))
    print(worker, flush=True)
    while not select([sys.stdin], [], [], 0 if "both" in sys.argv else None)[0]:
        sum(range(100_000))
