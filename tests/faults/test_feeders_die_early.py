"""A feeder that dies before it serves, or whose starter does, takes no trainer along and leaves nothing."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.forked import HANG_S, eventually

import penstock
from penstock.feed.endpoint import directory

pytestmark = pytest.mark.whole

SOAK = pytest.mark.soak

SCRIPT = """
import json, os, signal, sys, time
import numpy as np, penstock

place, times = sys.argv[1], int(sys.argv[2])

def die(at, pid=None):
    "Kill a process that has come to a place, the first so many times."
    with open("came", "a") as file:
        file.write(at + "\\n")
    if at == place and open("came").read().split().count(at) <= times:
        os.kill(pid or os.getpid(), signal.SIGKILL)
        time.sleep(0.2)  # of a parent it takes a moment to hear

class Commissioned:
    def __reduce__(self):
        return die, ("spec",)

def make(_):
    from penstock.feed.launch import process
    tell = process._write
    def telling(report, ready):
        die("bound")
        tell(report, ready)
        die("told")
    process._write = telling
    die("making")
    die("parent", os.getppid())
    if place == "exit":
        os._exit(7)
    if place == "raise":
        raise ValueError("no such data")
    if place == "loud":
        print("the last words", flush=True)
        die("loud")
    return penstock.ArraySource({"id": np.arange(500)}, batch_size=10, segments=5)

def main():
    import functools
    try:
        with penstock.share(functools.partial(make, Commissioned()), "numbers", 7, linger=0.5) as loader:
            ids = [sorted(int(i) for batch in loader for i in batch["id"]) for _ in range(2)]
            print(json.dumps({"right": ids == [list(range(500))] * 2}))
    except penstock.errors.SourceError as error:
        print(json.dumps({"error": str(error)}))

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a trainer that shares, whose feeder dies at a place; what still runs at the test's end is killed."""
    (tmp_path / "script.py").write_text(SCRIPT)
    started: list[subprocess.Popen[str]] = []

    def run(place: str, times: int, python: str = sys.executable) -> subprocess.Popen[str]:
        command = [python, "-W", "error", "script.py", place, str(times)]
        started.append(subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    return json.loads(out)


@pytest.mark.parametrize("place", ["spec", "making", "parent", "bound", "told"])
def test_a_feeder_killed_twice_while_it_starts_costs_no_trainer_anything(start, tmp_path, place):
    processes = [start(place, 2) for _ in range(2)]
    assert [said(process) for process in processes] == [{"right": True}] * 2
    # A feeder that loses its parent serves for whoever has come meanwhile.
    assert (tmp_path / "came").read_text().split().count(place) >= (1 if place == "parent" else 3)
    eventually(lambda: not penstock.feeds())
    eventually(lambda: not list(directory().iterdir()), "a file is left behind")


def test_a_feeder_killed_before_it_is_python_costs_no_trainer_anything(start, tmp_path):
    """What its trainer starts is killed after its fork, before the interpreter is there."""
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *detach*) echo . >> {tmp_path}/deaths\n'
        f'[ $(wc -l < {tmp_path}/deaths) -le 2 ] && kill -9 $$;; esac\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    script = tmp_path / "wrapped.py"
    script.write_text(f"import sys; sys.executable = {str(python)!r}\n{SCRIPT}")
    out = subprocess.run(
        [sys.executable, str(script), "nowhere", "0"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(out.stdout) == {"right": True}
    assert len((tmp_path / "deaths").read_text().split()) == 3


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("making", "3 times its feeder's process was killed by SIGKILL (as the kernel does when memory runs out)"),
        ("exit", "3 times its feeder's process ended with status 7 before it served"),
        ("loud", "before it served; the end of its log:\nthe last words"),
    ],
)
def test_a_feeder_that_dies_whenever_it_is_started_is_given_up_with_what_ended_it(start, tmp_path, place, told):
    error = said(start(place, 1000))["error"]
    assert told in error
    assert ("log" in error) == (place == "loud")
    assert (tmp_path / "came").read_text().split().count("making") == 3
    assert not list(directory().iterdir())


def test_an_error_of_make_loader_is_told_at_once(start, tmp_path):
    assert "ValueError: no such data" in said(start("raise", 0))["error"]
    assert (tmp_path / "came").read_text().split().count("making") == 1


@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT"])
def test_a_starter_that_goes_takes_the_feeder_along_that_it_waits_for_and_others_go_on(train, tmp_path, how):
    started = tmp_path / "started"
    source = {"kind": "announcing", "started": str(started), "pause_s": 600, "pauses": 1}
    starter = train(source=source, options={"linger": 0.0})
    pid = int(eventually(lambda: started.exists() and started.read_text()))
    other = train(source=source, options={"linger": 0.0})
    starter.signal(how)
    if how == "SIGINT":
        starter.fails("KeyboardInterrupt")
    starter.wait()
    eventually(lambda: not psutil.pid_exists(pid), "the feeder goes on for nobody")
    other.has_all(1000, 2)


def test_ctrl_c_while_another_starts_the_feeder_costs_that_one_nothing(train, tmp_path):
    started, gate = tmp_path / "started", tmp_path / "gate"
    source = {"kind": "announcing", "started": str(started), "gate": str(gate)}
    starter = train(source=source, options={"linger": 0.0})
    eventually(started.exists)
    waiting = train(source=source, options={"linger": 0.0})
    waiting.wait_for("connecting")
    waiting.signal("SIGINT")
    waiting.fails("KeyboardInterrupt")
    gate.touch()
    starter.has_all(1000, 2)
    assert len(started.read_text().split()) == 1


def test_ctrl_c_during_the_handshake_costs_the_others_nothing(feed, train):
    feeder = feed(window=100_000)
    other = train(delay_s=0.005)
    other.wait_for("epoch")
    feeder.stop()
    greeting = train(source={"kind": "rows"})
    greeting.wait_for("connecting")
    greeting.signal("SIGINT")
    greeting.fails("KeyboardInterrupt")
    feeder.signal("SIGCONT")
    other.has_all(1000, 2)
    feeder.interrupt()


@pytest.mark.parametrize("turns", [3, pytest.param(60, marks=[SOAK, pytest.mark.timeout(900)])])
def test_trainers_that_go_at_a_random_instant_of_their_start_leave_the_others_whole(train, turns):
    chance = random.Random(turns)
    for turn in range(turns):
        order = {"name": f"feed {turn}", "source": {"kind": "rows", "samples": 300}, "options": {"linger": 0.2}}
        trainers = [train(**order) for _ in range(3)]
        for trainer in trainers[:2]:
            time.sleep(chance.uniform(0, 0.4))
            trainer.signal(chance.choice(["SIGINT", "SIGKILL", "SIGTERM"]))
        trainers[2].has_all(300, 2)
        for trainer in trainers[:2]:
            trainer.wait()
