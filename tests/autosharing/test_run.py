"""`penstock run --share`, from the command line to the feed."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.autosharing.running import SCRIPTS, check_like, feeds_read

import penstock


@pytest.mark.whole
def test_two_unmodified_runs_whose_loaders_spawn_workers_are_alike(launch: Callable[..., Any], tmp_path: Path):
    shutil.copy(SCRIPTS / "loops.py", tmp_path)
    done = launch("--share", "--name", "mine", "-n", "2", "--listeners", "none", "loops.py", "spawn")
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
def test_what_the_command_asks_for_counts_before_what_the_script_does_and_a_file_moves_it(launch, tmp_path: Path):
    text = (SCRIPTS / "moving.py").read_text()
    marked = "penstock.autoshare('other', strict=True)\nif __name__ =="
    (tmp_path / "moving.py").write_text(text.replace("if __name__ ==", marked))
    done = launch(
        *("--share", "--name", "mine", "--listeners", "none", "moving.py"),
        PENSTOCK_FEED_FILE=str(tmp_path / "suffix"),
    )
    assert done.wait() == 0, done.output + done.errors
    names = feeds_read(done.errors)
    assert names and all(name.startswith("mine-") for name in names)
    check_moves(done.errors)
    for feed in penstock.feeds():
        penstock.stop(feed.name)


def check_moves(said: str) -> None:
    """Check that each epoch began on the feed that the file named."""
    assert re.findall(r"epoch on \['([xy]?)'\] after", said) == ["", "", "x", "x", ""], said
    assert len(re.findall("this trainer .* moves from feed", said)) == 2
    assert "all whole" in said and "is not shared" not in said and "stays" not in said


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
if index == "1":
    while not (folder / "read").exists():
        time.sleep(0.1)
    sys.exit()
import torch
from torch.utils.data import DataLoader, TensorDataset
ids = [int(i) for (batch,) in DataLoader(TensorDataset(torch.arange(640)), 16, shuffle=True) for i in batch]
assert sorted(ids) == list(range(640))
(folder / "read").touch()
"""
    (tmp_path / "one_without.py").write_text(script)
    done = launch("--share", "-n", "2", "--listeners", "none", "one_without.py")
    assert done.wait() == 0, done.output + done.errors
    (name,) = feeds_read(done.errors)
    penstock.stop(name)
