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


def _traces(launch: Callable[..., Any], folder: Path, script: str, asked: str, *words: str) -> Any:
    """Run a script with this profile; return the run, and the events of its traces."""
    (folder / "train.py").write_text(script)
    done = launch("--listeners", "none", "--profile", asked, "train.py", *words)
    assert done.wait() == 0, done.errors
    with Store.open(folder / "store") as store:
        paths = sorted((store.folder_of(done.record().id) / "files").iterdir())
    assert all(path.match("torch-*.json") for path in paths)
    return done, [json.loads(path.read_text())["traceEvents"] for path in paths]


@pytest.mark.parametrize(
    ("script", "asked", "words", "steps"),
    [
        *((PLAIN, "torch", ["30", workers], 10) for workers in ("0", "2")),
        (SHARED, "torch 3-6", ["12"], 3),
        (PLAIN, "torch", ["14", "0"], 5),  # it ends within the window
    ],
)
def test_the_steps_asked_for_are_traced_as_far_as_there_are_any(launch, tmp_path, script, asked, words, steps):
    _, (events,) = _traces(launch, tmp_path, script, asked, *words)
    assert sum(event["name"] == "aten::mm" for event in events) == steps
    names = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    assert sum("ProfilerStep" in name for name in names) == 10 or steps < 10


def test_a_loop_that_is_too_short_is_told(launch: Callable[..., Any], tmp_path: Path) -> None:
    done, traces = _traces(launch, tmp_path, PLAIN, "torch", "6", "0")
    assert not traces
    assert "penstock: no profile: the loop had 6 steps, and step 10 was to be the first" in done.errors
