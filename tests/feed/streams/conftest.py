"""Feeds in threads of the test's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import penstock
from penstock.errors import SourceError


@contextmanager
def feeding(source: Any, name: str, **settings: Any) -> Iterator[penstock.Feeder]:
    """Feed from a source until the block ends; its failure is the trainers'."""
    feeder = penstock.Feeder(source, name, **settings)

    def run() -> None:
        with suppress(SourceError):
            feeder.run()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield feeder
    finally:
        feeder.close()
        thread.join(30)
        assert not thread.is_alive()


def wait_until(true: Callable[[], bool], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def epoch(loader: penstock.Loader) -> list[int]:
    """Read an epoch; return the ids of its records, in order."""
    return [id for batch in loader for id in batch["id"].tolist()]
