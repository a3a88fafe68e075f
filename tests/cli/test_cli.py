"""The command line, as processes: what it prints, what it returns, and how it fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import started

import penstock
from penstock.io.open import MECHANISMS


@pytest.fixture
def feeding(loader_file: Path):
    process = started("feed", f"{loader_file}:make_loader", "--name", "cli/feed")
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)


def test_a_feed_is_run_seen_and_stopped(command, feeding):
    with penstock.attach("cli/feed", 30) as loader:
        ids = np.concatenate([batch["id"] for batch in loader])
        assert sorted(ids) == list(range(200))
        listed = json.loads(command("status", "--json").stdout)
        assert [feed["name"] for feed in listed] == ["cli/feed"]
        assert listed[0]["pid"] == feeding.pid
        (trainer,) = listed[0]["trainers"]
        assert (trainer["pid"], trainer["batch_size"]) == (os.getpid(), 30)
        assert trainer["lag_samples"] >= 0
        shown = command("status").stdout
        assert "cli/feed" in shown
        assert str(os.getpid()) in shown
        stopped = command("stop", "cli/feed")
        assert stopped.returncode == 0, stopped.stderr
        with pytest.raises(penstock.errors.FeedStopped, match="was stopped by process"):
            for _ in range(1000):
                list(loader)
    assert feeding.wait(20) == 0
    assert json.loads(command("status", "--json").stdout) == []


def test_ctrl_c_ends_a_feed_and_tells_its_trainers(feeding):
    with penstock.attach("cli/feed") as loader:
        batches = iter(loader)
        next(batches)
        feeding.send_signal(signal.SIGINT)
        with pytest.raises(penstock.errors.FeedStopped, match="interrupted"):
            for _ in range(100_000):
                next(iter(loader))
    assert feeding.wait(20) == 130


def test_nothing_runs_says_what_to_do(command):
    shown = command("status")
    assert shown.returncode == 0
    assert "penstock feed" in shown.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("stop nobody", "no feed is named 'nobody'"),
        ("feed nowhere.py:make_loader --name x", "there is no file nowhere.py"),
        ("feed nowhere.py --name x", "write FILE.py:FUNCTION"),
        ("feed my_loader.py:other --name x", "it has: broken, chains, find, make_loader"),
        ("feed my_loader.py:make_loader --name x --window much", "give bytes as a number"),
        ("feed my_loader.py:make_loader --name x --segments 0", "segments=0"),
        ("feed my_loader.py:make_loader --name x --reader uring", "records:; my_loader.py:make_loader has its"),
        ("feed tokens:x.bin --name x --depth 3", "has no option 'depth'; it has length, batch_size, dtype"),
        ("feed images:nowhere --name x --size 64", "nowhere: there is no such folder"),
        ("feed my_loader.py:make_loader --name x workers=4", "that is the feed's, not my_loader.py:make_loader's"),
        ("feed my_loader.py:make_loader --name x --workers 4", "only those of a torch DataLoader are set so"),
        ("feed my_loader.py:make_loader --name x --workers many", "workers='many': it must be a whole number, or"),
        ("feed tokens:x.bin workers=4 --name x", "that is the feed's, not tokens:x.bin's; give --workers 4"),
        ("feed images:. workers=ray --name x", "workers=ray: give a whole number"),
        ("feed tokens:x.bin --name x", "tokens:x.bin needs length=..., as penstock.TokenSource"),
        ("feed tokens:x.bin --name x --length 8", "x.bin: no such file of tokens"),
        ("feed packed: --name x", "packed: names nothing: write packed:PATH"),
        ("feed images:x sise=3 --name x", "has no option 'sise'; did you mean size?"),
        ("feed images:x size=big --name x", "size=big: give a whole number"),
        ("feed images:x scale=1 --name x", "scale=1: give values between commas"),
        ("feed images:x decode=f --name x", "decode=f: a function is given in Python"),
        ("feed images:x y --name x", "one SOURCE is fed, and these were given: images:x, y"),
        ("feed packed --name x", "names no data: write packed: and their path"),
        ("feed images:. seed=3 --name x", "that is the feed's, not images:.'s; give --seed 3"),
        ("feed images:. --wndow 1GiB --name x", "did you mean --window?"),
        ("feed make.py:make --wndow 1GiB --name x", "did you mean --window?"),
        ("feed . --name x", "has made, write packed:."),
        ("feed packed:nowhere --name x", "no packed data set in nowhere: there is no such folder"),
        ("feed my_loader.py:needs --name x", "needs is called without arguments, and needs some"),
        ("pack my_loader.py:make_loader", "give FILE.py:FUNCTION and a folder"),
    ],
)
def test_a_mistake_gets_one_clear_message(command, loader_file: Path, words, says):
    failed = command(*words.split(), cwd=loader_file.parent)
    assert failed.returncode == 2
    assert says in failed.stderr.replace("\n", " ")
    assert "Traceback" not in failed.stderr


@pytest.mark.parametrize(
    ("function", "frames", "told"),
    [
        ("raises", ["raises", "find"], "raises() in {} raised KeyError: 'images'"),
        ("chains", ["chains", "find", "chains"], "chains() in {} raised OSError: no [images] here"),
    ],
)
def test_what_the_function_raises_is_shown_from_its_own_file_on(command, loader_file, function, frames, told):
    where = f"{loader_file.name}:{function}"
    for words in (("feed", where, "--name", "x"), ("pack", where, "out")):
        failed = command(*words, cwd=loader_file.parent)
        assert failed.returncode == 1
        assert f"penstock: {told.format(loader_file.name)}" in failed.stderr
        shown = [line for line in failed.stderr.splitlines() if line.startswith("  File ")]
        assert all(str(loader_file) in line for line in shown)
        assert [line.rpartition(" ")[2] for line in shown] == frames
        assert not (loader_file.parent / "out").exists()


@pytest.mark.parametrize(
    ("content", "shown", "told"),
    [("def f(:\n", "line 1", "my_loader.py raised SyntaxError"), ("import nowhere\n", "in <module>", "No module")],
)
def test_a_file_that_cannot_be_run_is_shown_without_our_frames(command, loader_file: Path, content, shown, told):
    loader_file.write_text(content)
    failed = command("feed", "my_loader.py:f", "--name", "x", cwd=loader_file.parent)
    assert failed.returncode == 1
    assert told in failed.stderr.splitlines()[-1]
    (line,) = [line for line in failed.stderr.splitlines() if line.startswith("  File ")]
    assert line.endswith(shown)


def test_a_source_that_fails_shows_its_own_traceback(loader_file: Path):
    process = started("feed", f"{loader_file}:broken", "--name", "broken", stderr=subprocess.PIPE)
    with (
        penstock.attach("broken", wait_s=100) as loader,
        pytest.raises(penstock.errors.SourceError, match="disk is gone"),
    ):
        next(iter(loader))
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert "my_loader.py" in errors
    assert "the disk is gone" in errors


def test_the_feeds_are_shown_live_until_that_is_interrupted(feeding):
    process = started("status", "--watch", "--interval", "0.1")
    assert process.stdout is not None
    while "cli/feed" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130


def test_doctor_finds_that_sharing_works_here(process):
    found = process("doctor", "--json")
    assert found.returncode == 0, found.stdout
    verdicts = {finding["what"]: finding["verdict"] for finding in json.loads(found.stdout)}
    assert verdicts["host ring"] == "works"
    assert verdicts["a feed"] == "works"
    assert {f"reader {mech}" for mech in MECHANISMS} <= verdicts.keys()
    assert "1,000 samples, each exactly once" in found.stdout
    if not Path("/proc/driver/nvidia/version").exists():
        assert "MPS" not in verdicts


def test_doctor_fails_where_sharing_cannot_work(process, feeds_directory: Path):
    feeds_directory.chmod(0o755)
    found = process("doctor")
    feeds_directory.chmod(0o700)
    assert found.returncode == 1
    assert "chmod 700" in found.stdout
