"""Workers that die."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from penstock.contracts import Cursor
from penstock.sources.torch.loader import adapt_loader


def break_off(pid: int) -> None:
    """What the receiver of a batch does: find the connection broken by a worker whose death is yet to be seen."""
    threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
    raise EOFError


class BrokenOff:
    def __reduce__(self) -> Any:
        return break_off, (os.getpid(),)


class Broken(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([0, BrokenOff()])


@pytest.mark.parametrize("dataset", [[0, BrokenOff()], Broken()], ids=["map-style", "iterable"])
def test_a_worker_that_dies_while_it_sends_a_batch_is_named(dataset):
    loader = DataLoader(dataset, batch_size=1, num_workers=1, collate_fn=list)
    source = adapt_loader(loader, segments=1, seed=0)
    with pytest.raises(RuntimeError, match=r"worker \(pid \d+\) (was ended|is killed by signal): Killed"):
        list(source.open(Cursor(0, 0)))


class Truncated(IterableDataset[Any]):
    """The first worker's part ends at once, and the second's breaks."""

    def __iter__(self) -> Any:
        worker = get_worker_info()
        assert worker is not None
        yield from range(20 * worker.id)
        if worker.id:
            raise EOFError("shard 7 is truncated")


def test_an_error_of_the_dataset_is_told_as_it_is():
    source = adapt_loader(DataLoader(Truncated(), batch_size=1, num_workers=2), segments=1, seed=0)
    with pytest.raises(EOFError, match="shard 7 is truncated"):
        list(source.open(Cursor(0, 0)))


@pytest.mark.parametrize("shuffle", [False, True])
def test_workers_that_persist_end_with_a_source_that_is_dropped_unclosed(shuffle):
    """At once, not when Python looks for cycles: torch then waits 5 s for each."""
    gc.disable()
    try:
        loader = DataLoader(range(8), 4, shuffle=shuffle, num_workers=2, persistent_workers=True)  # type: ignore[arg-type]
        source = adapt_loader(loader, segments=1, seed=1)
        del loader
        blocks = source.open(Cursor(0, 0))
        list(blocks)
        workers = multiprocessing.active_children()
        assert len(workers) == 2
        del blocks, source
        assert not [worker for worker in workers if worker.is_alive()]
    finally:
        gc.enable()
