"""A script whose loaders are shared is moved by the file that its environment names."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.autosharing.running import SCRIPTS, Scripts

import penstock


def check_moves(said: str) -> None:
    assert re.findall(r"epoch on \['([xy]?)'\] after", said) == ["", "", "x", "x", ""], said
    assert len(re.findall("this trainer .* moves from feed", said)) == 2
    assert "all whole" in said and "is not shared" not in said and "stays" not in said


@pytest.mark.whole
def test_a_script_begins_each_epoch_where_the_file_says(scripts: Scripts):
    run = scripts.start(0, "moving.py", PENSTOCK_FEED_FILE=str(scripts.folder / "suffix"))
    assert run.wait() == 0, run.output
    check_moves(run.output)


@pytest.mark.whole
def test_an_unmodified_run_of_penstock_run_moves(launch: Callable[..., Any], tmp_path: Path):
    shutil.copy(SCRIPTS / "moving.py", tmp_path)
    done = launch(
        *("--share", "--name", "mine", "--listeners", "none", "moving.py"),
        PENSTOCK_FEED_FILE=str(tmp_path / "suffix"),
    )
    assert done.wait() == 0, done.output + done.errors
    check_moves(done.errors)
    for feed in penstock.feeds():
        penstock.stop(feed.name)
