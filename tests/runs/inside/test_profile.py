"""`penstock run --profile torch`: the trace of some steps of an unmodified script."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.runs.store import Store

pytestmark = pytest.mark.whole

PLAIN = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
for batch, in DataLoader(TensorDataset(torch.arange(float(sys.argv[1]))), num_workers=int(sys.argv[2])):
    torch.mm(batch[:, None], batch[:, None])
"""
SHARED = """
import sys, penstock, torch
from torch.utils.data import DataLoader, TensorDataset
rows = float(sys.argv[1])
def make_loader(): return DataLoader(TensorDataset(torch.arange(rows)), batch_size=1)
for batch, in penstock.share(make_loader, "profiled", epochs=1, batch_size=1):
    torch.mm(batch[:, None], batch[:, None])
"""


def _traces(launch: Callable[..., Any], folder: Path, script: str, *words: str) -> tuple[Any, list[list[Any]]]:
    (folder / "train.py").write_text(script)
    done = launch("--listeners", "none", *words)
    assert done.wait() == 0, done.errors
    with Store.open(folder / "store") as store:
        paths = sorted((store.folder_of(done.record().id) / "files").iterdir())
    assert all(path.match("torch-*.json") for path in paths)
    return done, [json.loads(path.read_text())["traceEvents"] for path in paths]


def _steps(events: list[Any]) -> int:
    return sum(event.get("cat") == "user_annotation" and "ProfilerStep" in event["name"] for event in events)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_ten_steps_of_a_plain_dataloader_are_traced(launch: Callable[..., Any], tmp_path: Path, workers: str):
    _, (events,) = _traces(launch, tmp_path, PLAIN, "--profile", "torch", "train.py", "30", workers)
    assert _steps(events) == 10
    assert sum(event["name"] == "aten::mm" for event in events) == 10


def test_steps_can_be_chosen_and_those_of_a_shared_loader_count_too(launch: Callable[..., Any], tmp_path: Path):
    _, (events,) = _traces(launch, tmp_path, SHARED, "--profile", "torch 3-6", "train.py", "12")
    assert sum(event["name"] == "aten::mm" for event in events) == 3


def test_a_loop_that_ends_within_the_window_leaves_what_there_is(launch: Callable[..., Any], tmp_path: Path):
    _, (events,) = _traces(launch, tmp_path, PLAIN, "--profile", "torch", "train.py", "14", "0")
    assert sum(event["name"] == "aten::mm" for event in events) == 5


def test_a_loop_that_is_too_short_is_told(launch: Callable[..., Any], tmp_path: Path) -> None:
    done, traces = _traces(launch, tmp_path, PLAIN, "--profile", "torch", "train.py", "6", "0")
    assert not traces
    assert "penstock: no profile: the loop had 6 steps, and step 10 was to be the first" in done.errors
