"""Ctrl-C while a command, or a script that it runs, starts up: nobody is shown Penstock's own frames."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

pytestmark = pytest.mark.whole

OURS = str(Path(penstock.__file__).parent) + os.sep
INTERRUPTED = """
import os, sys

class Interrupting:
    def find_spec(name, path=None, target=None):
        if name == MODULE:
            sys.meta_path.remove(Interrupting)
            os.kill(os.getpid(), 2)

sys.meta_path.insert(0, Interrupting)
"""
COMMAND = INTERRUPTED + "sys.argv[0] = '/bin/penstock'\nfrom penstock.cli import main\nmain()\n"
SCRIPT = f"""{INTERRUPTED}
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        if MODULE == "the first batch" and os.getpid() != PID and i == 0:
            os.kill(PID, 2)
        return torch.tensor(i)

PID = os.getpid()
for batch in DataLoader(Numbers(), 8, shuffle=True):
    pass
"""


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command, env = [sys.executable, *words], {**os.environ, "PENSTOCK_STORE": str(folder / "store")}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100, check=False)


EARLY = ["typing", "re", "ctypes", "penstock.cli.command", "typer", "penstock.basics.terminal"]


@pytest.mark.parametrize("module", EARLY)
@pytest.mark.parametrize("words", [["demo"], ["feed", "f.py:f"], ["run", "--share", "train.py"]])
def test_a_command_that_is_interrupted_while_it_is_imported_says_nothing(tmp_path, words, module):
    """As it was found: ``import penstock`` itself imports some before ``main()`` catches an interrupt."""
    (tmp_path / "f.py").write_text("")
    (tmp_path / "train.py").write_text("")
    text = COMMAND.replace("MODULE", repr(module))
    ran = python(tmp_path, "-c", text, *words)
    assert ran.returncode == 130 and "Traceback" not in ran.stderr, ran.stderr


@pytest.mark.parametrize(
    "module",
    [
        "torch.distributed",
        "penstock.autosharing.guard",
        "penstock.feed.wire",
        "the first batch",
    ],
)
def test_a_script_that_is_interrupted_while_it_begins_to_share_shows_its_own_frames_alone(tmp_path, module):
    (tmp_path / "train.py").write_text(SCRIPT.replace("MODULE", repr(module)))
    ran = python(tmp_path, "-m", "penstock", "run", "--share", "train.py")
    for feed in penstock.feeds():  # it lingers
        penstock.stop(feed.name)
    assert ran.returncode and "KeyboardInterrupt" in ran.stderr, ran.stderr
    assert str(tmp_path / "train.py") in ran.stderr and OURS not in ran.stderr, ran.stderr
