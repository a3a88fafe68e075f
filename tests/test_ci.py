"""What fails in `.ci/run` is run once more, alone; only what fails twice fails the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.whole
CI_PYTEST = Path(__file__).parents[1] / ".ci" / "pytest"
ONCE = """
from pathlib import Path
def test_once():
    first = not Path("seen").exists()
    Path("seen").touch()
    assert not first
def test_beside():
    Path("beside").open("a").write(".")
"""
TWICE = ONCE + "def test_always():\n    assert False\n"
DIES = (
    ONCE + "import os, pytest\ndef test_ends_it():\n    pytest.exit('no more')\ndef test_unseen():\n    assert 0\n"
)


@pytest.mark.parametrize(
    ("code", "options", "ended", "again"),
    [
        pytest.param(ONCE, [], 0, ["test_it.py::test_once"], id="what passes alone passes, and is named"),
        pytest.param(ONCE, ["-n", "2"], 0, ["test_it.py::test_once"], id="after several processes, too"),
        pytest.param(TWICE, [], 1, [], id="what fails twice fails the run"),
        pytest.param(DIES, [], 2, [], id="a run that was cut short is not made good by what it had seen fail"),
        pytest.param("import nothing_of_that_name", [], 2, [], id="what cannot be collected fails the run"),
        pytest.param("", [], 5, [], id="no test is no success"),
        pytest.param("def test_it(): pass", [], 0, [], id="what passes is named nowhere"),
    ],
)
def test_in_ci(code: str, options: list[str], ended: int, again: list[str], tmp_path: Path):
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "test_it.py").write_text(code)
    (named := tmp_path / "again").touch()
    command = [CI_PYTEST, "-p", "no:hypothesispytest", "test_it.py", *options]
    run = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"AGAIN": str(named)}, capture_output=True, check=False
    )
    assert run.returncode == ended, run.stdout.decode()
    assert named.read_text().split() == again
    if again:
        assert (tmp_path / "beside").read_text() == "."  # what had passed is not run again
