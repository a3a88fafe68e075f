"""A far side that answers each task twice, the last first, and tasks that nobody gave it."""

from __future__ import annotations

import pickle
from multiprocessing.connection import Connection
from typing import Any

from penstock.sources.workers.process import READY


def main(fd: int) -> None:
    connection: Connection[Any, Any] = Connection(fd)
    connection.recv_bytes()
    connection.send((READY, True, None))
    while True:
        tasks = [pickle.loads(each) for each in connection.recv()]
        for number, (_, text) in [*reversed(tasks), *tasks]:
            connection.send((number, True, text.upper()))
            connection.send((number + 1_000_000, True, "WRONG"))
