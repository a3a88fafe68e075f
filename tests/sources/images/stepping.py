"""A worker for tests, which writes down its steps."""

from __future__ import annotations

import os

from penstock.sources.images.pool import Steps, serve

STEPS = 3


def make(log_fd: int):
    def work(task: str) -> Steps[str]:
        os.write(log_fd, f"ask {task}\n".encode())
        yield
        for _ in range(STEPS):
            os.write(log_fd, f"do {task}\n".encode())
            yield
        return task.upper()

    return work


def main(fd: int) -> None:
    serve(fd, make)
