"""Workers that die."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

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
