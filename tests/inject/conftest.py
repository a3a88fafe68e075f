"""`penstock run` as processes, and scripts whose loaders are watched."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.forked import Forked, ForkServer
from tests.runs.conftest import launch

from penstock.runs.record import GroupPlan, RunPlan
from penstock.runs.store import Store
from penstock.runs.store.database import this_process

__all__ = ["launch"]

WATCHED = Path(__file__).with_name("watched.py")

DATA = """
import copy, gc, itertools, os, pickle, random, sys, threading, time, traceback
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Rows(Dataset):
    def __init__(self, rows=10, bad=None): self.rows, self.bad = rows, bad
    def __len__(self): return self.rows
    def __getitem__(self, i):
        if i == self.bad: raise KeyError(f"row {i} is bad")
        seeded = torch.utils.data.get_worker_info() is not None
        return {"id": i, "drawn": torch.rand(()), "other": random.random() if seeded else 0}

class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        for i in range(info.id if info else 0, 10, info.num_workers if info else 1): yield torch.tensor([i])
"""
"""What a script that is watched begins with."""

Watched = Callable[..., dict[str, list[float]]]


@pytest.fixture
def launched(launch: Callable[..., Any], tmp_path: Path) -> Watched:
    """Runs a script by `penstock run`; returns the series of its run."""

    def run(text: str, *before: str, **environment: str) -> dict[str, list[float]]:
        (tmp_path / "train.py").write_text(DATA + text)
        one = launch("--watch-dataloader", "--listeners", "none", *(before or ("train.py",)), **environment)
        assert one.wait() == 0, one.output + one.errors
        return series(tmp_path, one.record().id)

    return run


@pytest.fixture
def watched(servers: dict[str, ForkServer], tmp_path: Path) -> Watched:
    """Runs a script as a run, forked from a Python that has torch; returns the series of its run."""

    def run(text: str) -> dict[str, list[float]]:
        (tmp_path / "train.py").write_text(DATA + text)
        with Store.open(tmp_path / "store") as store:
            plan = RunPlan(command=(sys.executable, "train.py"), name="run", directory=str(tmp_path))
            (record,) = store.add(GroupPlan(name="group", runs=(plan,)))
            me = this_process()
            store.began(record.id, keeper=(me.pid, me.started_ticks), pid=me.pid)
        environment = {"PENSTOCK_STORE": str(tmp_path / "store"), "PENSTOCK_RUN_ID": record.id}
        at = {"directory": tmp_path, "environment": {**os.environ, **environment}}
        one = Forked(servers["torch"], str(WATCHED), ["train.py"], tmp_path / "out", **at)
        assert one.wait() == 0, one.output
        return series(tmp_path, record.id)

    return run


def series(folder: Path, run: str) -> dict[str, list[float]]:
    with Store.open(folder / "store") as store:
        return {name: each.values.tolist() for name, each in store.series(run).items()}
