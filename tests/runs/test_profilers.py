"""`penstock run --profile`: NVIDIA's profilers, by programs that take their place."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runs.running import PYTHON

from penstock.errors import BadSetting
from penstock.runs.profilers import check_profilers
from penstock.runs.store import Store

FAKE = """#!{python}
import json, os, sys
own = [word for word in sys.argv[1:] if word.startswith("-") and "=" in word]
rest = [word for word in sys.argv[1:] if word not in own and word not in ("profile", "--force-overwrite")]
output = next(word.partition("=")[2] for word in own if word.startswith(("--output=", "--export=")))
open(output + ".fake-rep", "w").write(json.dumps(sys.argv))
os.execvp(rest[0], rest)
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A PATH with an nsys and an ncu that note how they were called, and run the command."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("nsys", "ncu"):
        (folder / name).write_text(FAKE.format(python=PYTHON))
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    return path


@pytest.mark.parametrize(
    ("asked", "called"),
    [
        ("nsys", ["profile", "--output={}", "--force-overwrite=true"]),
        ("nsys --trace=cuda", ["profile", "--output={}", "--force-overwrite=true", "--trace=cuda"]),
        ("ncu", ["--export={}", "--force-overwrite", "--target-processes=all"]),
    ],
)
def test_a_command_runs_below_the_profiler_which_writes_into_the_runs_folder(
    programs: str, launch: Callable[..., Any], tmp_path: Path, asked: str, called: list[str]
) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint('args', sys.argv[1:])\nsys.exit(3)\n")
    done = launch("--listeners", "none", "--profile", asked, "train.py", "--lr", "1", PATH=programs)
    assert done.wait() == 3
    assert done.output == "args ['--lr', '1']\n"
    record = done.record()
    assert record.plan.command == (PYTHON, "train.py", "--lr", "1")
    with Store.open(tmp_path / "store") as store:
        report = store.folder_of(record.id) / "files" / asked.split(maxsplit=1)[0]
    said = json.loads(report.with_suffix(".fake-rep").read_text())
    assert said[1:] == [word.format(report) for word in called] + list(record.plan.command)


def test_a_profiler_that_is_not_on_the_path_is_an_error_before_anything_starts(launch, tmp_path):
    done = launch("--profile", "nsys", PYTHON, "-c", "open('began', 'w')", PATH="/nowhere")
    assert done.wait() == 2
    told = "nsys is not on the PATH; install NVIDIA's Nsight, or leave it out"
    assert done.errors == f"penstock: --profile: {told}\n"
    assert not (tmp_path / "began").exists()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["vtune"], "there is no profiler 'vtune'; there are torch, nsys, ncu"),
        ([""], "there is no profiler ''"),
        (["torch 20-10"], "give steps from 2 on, such as torch 10-20"),
        (["torch many"], "give steps from 2 on, such as torch 10-20"),
        (["nsys 'x"], "No closing quotation"),
        (["nsys", "ncu"], "nsys and ncu: one of them profiles a run"),
    ],
)
def test_what_cannot_profile_is_an_error(programs: str, asked: list[str], said: str) -> None:
    with pytest.raises(BadSetting, match=said):
        check_profilers("--profile", asked)
