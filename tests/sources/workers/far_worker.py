"""A far side that does the tasks of the contract of workers."""

from __future__ import annotations

from penstock.sources.workers.process import serve_batches
from penstock.testing.workers import worker


def main(fd: int) -> None:
    serve_batches(fd, worker)
