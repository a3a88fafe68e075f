"""``penstock pack``, as a process: what it prints where, and what it returns."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.feed.launch.function import function_at

LOADER = """
import numpy as np
import penstock
def make_loader():
    return penstock.ArraySource({"id": np.arange(200)}, batch_size=20)
"""


@pytest.fixture
def loader_file(tmp_path: Path) -> Path:
    path = tmp_path / "my_loader.py"
    path.write_text(LOADER)
    return path


def command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """In a pipe, as wide as most terminals are."""
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "80"},
    )


def test_what_packing_prints_begins_with_text_and_has_a_command_to_copy(loader_file: Path, tmp_path: Path):
    folder = tmp_path / ("a long name " * 6)
    done = command("pack", f"{loader_file}:make_loader", folder)
    assert (done.returncode, done.stderr) == (0, "")
    told, feed = done.stdout.splitlines()
    assert told == f"Packed 200 samples, 1.6 KB, into {folder}. To feed them:"
    assert feed == f"penstock feed 'packed:{folder}' --name NAME"
    checked = command("pack", "--check", folder)
    assert checked.stdout == f"All 200 samples in {folder} (1.6 KB) are as they were packed.\n"


def test_a_check_tells_all_that_is_damaged_and_returns_1(tmp_path: Path):
    folder = tmp_path / "set"
    penstock.pack({"id": np.arange(50), "image": np.zeros((50, 100), np.uint8)}, folder)
    for file, offset in (("0-id.npy", 4096), ("1-image.npy", 4096 + 700), ("1-image.npy", 4096 + 4999)):
        with open(folder / file, "r+b") as opened:
            opened.seek(offset)
            opened.write(b"\x77")
    checked = command("pack", "--check", folder)
    assert (checked.returncode, checked.stdout) == (1, "")
    assert checked.stderr.splitlines() == [
        f"penstock: 1 of 50 rows of {folder / '0-id.npy'} are damaged or cannot be read: 0",
        f"2 of 50 rows of {folder / '1-image.npy'} are damaged or cannot be read: 7, 49",
        f"Restore it from a copy, or delete {folder} and pack again",
    ]


def test_a_folder_that_was_mistyped_is_told_with_those_that_are_there(tmp_path: Path):
    penstock.pack({"id": np.arange(5)}, tmp_path / "imagenet")
    fed = command("feed", f"packed:{tmp_path / 'imagnet'}", "--name", "x")
    said = "".join(fed.stderr.split())
    assert fed.returncode == 2
    assert f"nopackeddatasetin{tmp_path}/imagnet:thereisnosuchfolder.Thereisonein{tmp_path}/imagenet" in said
    assert "Restore" not in said


def test_a_file_that_was_edited_within_a_second_is_run_as_it_is_now(loader_file: Path):
    """Python's bytecode goes by the second of an edit and the size: both stay the same here."""
    time_ns = loader_file.stat().st_mtime_ns
    for rows in (200, 199):
        loader_file.write_text(LOADER.replace("200", str(rows)))
        os.utime(loader_file, ns=(time_ns, time_ns))
        assert function_at(f"{loader_file}:make_loader")().samples == rows
        subprocess.run([sys.executable, "-m", "compileall", "-q", loader_file], check=True)
    assert list(loader_file.parent.glob("__pycache__/*.pyc"))
