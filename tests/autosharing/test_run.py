"""`penstock run --share`, from the command line to the feed."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.autosharing.running import SCRIPTS, check_like, feeds_read

import penstock


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["plain", "spawn"])
def test_two_unmodified_runs_are_as_they_are_alone(launch: Callable[..., Any], tmp_path: Path, kind: str):
    shutil.copy(SCRIPTS / "loops.py", tmp_path)
    done = launch("--share", "--name", "mine", "-n", "2", "--listeners", "none", "loops.py", kind)
    assert done.wait() == 0, done.output + done.errors
    (name,) = feeds_read(done.errors)
    assert name.startswith("mine-")
    assert "shared nothing" not in done.errors
    penstock.stop(name)
    assert all(record.plan.share and record.plan.share.name == "mine" for record in done.records())
    seen = [json.loads((tmp_path / f"seen-{i}.json").read_text()) for i in range(2)]
    assert seen[0]["epochs"] == seen[1]["epochs"]
    check_like(seen[0], seen[1])


@pytest.mark.whole
def test_what_the_command_asks_for_counts_before_what_the_script_does(launch: Callable[..., Any], tmp_path: Path):
    loops = (SCRIPTS / "loops.py").read_text()
    marked = "import penstock\n\npenstock.autoshare('other', strict=True)\nif __name__ =="
    (tmp_path / "loops.py").write_text(loops.replace("if __name__ ==", marked))
    done = launch("--share", "--name", "mine", "--listeners", "none", "loops.py", "plain")
    assert done.wait() == 0, done.output + done.errors
    (name,) = feeds_read(done.errors)
    assert name.startswith("mine-")
    penstock.stop(name)


def test_a_script_without_a_loader_is_told_of(launch: Callable[..., Any]):
    without = launch("--share", sys.executable, "-c", "print('trained')")
    assert without.wait() == 0, without.errors
    assert "shared nothing: it has iterated no DataLoader" in without.errors


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_a_python_that_did_not_load_the_hook_is_told_of(launch: Callable[..., Any], flag: str):
    without = launch("--share", sys.executable, flag, "-c", "print('trained')")
    assert without.wait() == 0, without.errors
    assert "shared nothing: no Python of it loaded our hook (python -I, -E, -S, or another than" in without.errors
    assert "iterated no DataLoader" not in without.errors


def test_options_of_sharing_without_it_are_refused(launch: Callable[..., Any]):
    done = launch("--only", "Rows", "--strict", "train.py")
    assert done.wait() != 0
    assert "--only --strict: only with --share" in done.errors


@pytest.mark.whole
def test_runs_begin_though_one_of_them_never_makes_a_loader(launch: Callable[..., Any], tmp_path: Path):
    script = f"""
import os, sys, time
from pathlib import Path
index, folder = os.environ["PENSTOCK_RUN_INDEX"], Path({str(tmp_path)!r})
if index == "2":
    while sum(path.name.startswith("read") for path in folder.iterdir()) < 2:
        time.sleep(0.1)
    sys.exit()
import torch
from torch.utils.data import DataLoader, TensorDataset
ids = [int(i) for (batch,) in DataLoader(TensorDataset(torch.arange(640)), 16, shuffle=True) for i in batch]
assert sorted(ids) == list(range(640))
(folder / f"read-{{index}}").touch()
"""
    (tmp_path / "one_without.py").write_text(script)
    done = launch("--share", "-n", "3", "--listeners", "none", "one_without.py")
    assert done.wait() == 0, done.output + done.errors
    (name,) = feeds_read(done.errors)
    penstock.stop(name)
