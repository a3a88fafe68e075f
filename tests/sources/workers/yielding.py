"""A process on one core that yields as much as it is told, and starts a worker that computes until it ends."""

from __future__ import annotations

import os
import socket
import sys

from penstock.linux.process import yield_to_others
from penstock.sources.workers.process import start_process


def main(fd: int) -> None:
    """Compute as the worker."""
    until = socket.socket(fileno=fd)
    until.setblocking(False)
    while True:
        sum(range(100_000))
        try:
            until.recv(1)
        except BlockingIOError:
            continue
        return


if __name__ == "__main__":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if nice := int(sys.argv[1]):
        yield_to_others(nice)
    worker, connection = start_process("tests.sources.workers.yielding", [], {})
    print(worker, flush=True)
    sys.stdin.read()
