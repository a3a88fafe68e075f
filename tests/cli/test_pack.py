"""``penstock pack``, as a process: what it prints where, and what it returns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import LOADER, started

import penstock
from penstock.feed.launch.function import function_at


def test_what_packing_prints_begins_with_text_and_has_a_command_to_copy(command, loader_file, tmp_path):
    folder = tmp_path / ("a long name " * 6)
    done = command("pack", f"{loader_file}:make_loader", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    told, feed = done.stdout.splitlines()
    assert told == f"Packed 200 samples, 1.6 KB, into {folder}. To feed them:"
    assert feed == f"penstock feed 'packed:{folder}' --name NAME"
    checked = command("pack", "--check", str(folder))
    assert checked.stdout == f"All 200 samples in {folder} (1.6 KB) are as they were packed.\n"


def test_a_check_tells_all_that_is_damaged_and_returns_1(command, tmp_path: Path):
    folder = tmp_path / "set"
    penstock.pack({"id": np.arange(50), "image": np.zeros((50, 100), np.uint8)}, folder)
    for file, offset in (("0-id.npy", 4096), ("1-image.npy", 4096 + 700), ("1-image.npy", 4096 + 4999)):
        with open(folder / file, "r+b") as opened:
            opened.seek(offset)
            opened.write(b"\x77")
    checked = command("pack", "--check", str(folder))
    assert (checked.returncode, checked.stdout) == (1, "")
    assert checked.stderr.splitlines() == [
        f"penstock: 1 of 50 rows of {folder / '0-id.npy'} are damaged or cannot be read: 0",
        f"2 of 50 rows of {folder / '1-image.npy'} are damaged or cannot be read: 7, 49",
        f"Restore it from a copy, or delete {folder} and pack again",
    ]


def test_a_folder_that_was_mistyped_is_told_with_those_that_are_there(command, tmp_path: Path):
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


def test_a_source_that_fails_while_it_is_packed_shows_its_own_traceback(command, loader_file, tmp_path):
    failed = command("pack", f"{loader_file}:broken", str(tmp_path / "packed"))
    assert failed.returncode == 2
    (line,) = [line for line in failed.stderr.splitlines() if line.startswith("  File ")]
    assert "my_loader.py" in line
    assert "penstock: the source raised ValueError: the disk is gone" in failed.stderr


def test_an_interrupted_packing_says_how_far_it_came_and_goes_on(command, loader_file: Path, tmp_path: Path):
    folder = tmp_path / "packed"
    words = "pack", f"{loader_file}:slow", str(folder)
    process = started(*words, stderr=subprocess.PIPE)
    while not loader_file.with_name("half").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=20)[1].replace("\n", " ")
    assert process.returncode == 130
    rows = json.loads((folder / "packing.json").read_text())["rows"]
    assert 0 < rows <= 1000
    assert f"Interrupted. {rows:,} samples are packed in" in told
    assert "Traceback" not in told
    loader_file.write_text(LOADER.replace("range(200)", "range(199)"))
    assert "the code of slow was #" in command(*words).stderr.replace("\n", " ")
    loader_file.write_text(LOADER)
    loader_file.with_name("go").touch()
    assert "Packed 4,000 samples, 31.25 KiB" in command(*words).stdout


@pytest.mark.whole
def test_a_loader_is_packed_checked_and_fed(command, loader_file: Path, tmp_path: Path):
    folder = tmp_path / "packed [new]"
    packed = command("pack", f"{loader_file}:make_loader", str(folder))
    assert packed.returncode == 0, packed.stderr
    assert "Packed 200 samples, 1.6 KB" in packed.stdout
    assert "".join(packed.stdout.split()).count("packed[new]") == 2
    again = command("pack", f"{loader_file}:make_loader", str(folder))
    assert again.returncode == 2
    assert "already holds a packed data set" in again.stderr
    checked = command("pack", "--check", str(folder))
    assert "All 200 samples" in checked.stdout
    options = "--name packed reader=direct batch_size=30 shuffle=false --epochs 1"
    feeding = started("feed", f"packed:{folder}", *options.split())
    with penstock.attach("packed", wait_s=30) as loader:
        assert [len(batch["id"]) for batch in loader] == [30] * 6 + [20]
    assert "packed packed [new]: 200 samples" in feeding.communicate(timeout=20)[0]
    assert feeding.returncode == 0
    options = "--name one --batch-size 9999 --in-order --segments 16 --window 4KiB --linger 0.1"
    feeding = started("feed", f"packed:{folder}", *options.split())
    with penstock.attach("one", 200, wait_s=30) as loader:
        assert len(next(iter(loader))["id"]) == 200
    told = " ".join(feeding.communicate(timeout=20)[0].split())
    assert "samples, 1.6 KB, in memory, window 4 KiB. Ctrl-C ends it." in told
    assert "1 segment, not 16: 200 samples make 1 block of up to 9,999. With a smaller batch_size" in told
    assert "The window is too small to read ahead" in told
    with open(folder / "0-id.npy", "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"wrong")
    damaged = command("pack", "--check", str(folder))
    assert damaged.returncode == 1
    assert "1 of 200 rows of" in damaged.stderr
