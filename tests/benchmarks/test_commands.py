"""The benchmarks' commands: each starts, and its processes find what they need and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from benchmarks.__main__ import NAMES
from tests.scripts import run_python

from benchmarks import children

pytestmark = pytest.mark.whole


def test_all_are_named_where_one_is_not_and_told_of_in_the_readme() -> None:
    shown = run_python("-m", "benchmarks", cwd=children.ROOT)
    assert shown.returncode == 1 and ", ".join(NAMES) in shown.stderr
    readme = (children.ROOT / "benchmarks" / "README.md").read_text()
    assert [name for name in NAMES if f"python -m benchmarks {name}" not in readme] == []


ALL = """
import typer
from benchmarks.__main__ import NAMES, command_of
for name in NAMES:
    options = {word for each in typer.main.get_command(command_of(name)).params for word in each.opts}
    assert "--json" in options, name
"""


def test_each_has_a_command_and_one_runs_from_the_root_of_the_repository() -> None:
    shown = run_python("-c", ALL, cwd=children.ROOT)
    assert shown.returncode == 0, shown.stderr
    shown = run_python("-m", "benchmarks", "share", "--help", cwd=children.ROOT)
    assert shown.returncode == 0, shown.stderr
    assert "--json" in shown.stdout


def test_a_process_of_a_benchmark_finds_nothing_in_its_working_directory(tmp_path: Path, monkeypatch) -> None:
    for name in ("json.py", "numpy.py", "benchmarks.py"):
        (tmp_path / name).write_text("raise RuntimeError('the working directory is searched')")
    monkeypatch.chdir(tmp_path)
    found = subprocess.run(
        children.command("benchmarks.share.ringcopy", "4096", "1"),
        env={**os.environ, **children.ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["ringcopy"]
