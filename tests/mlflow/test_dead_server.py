"""What a server that dies, or never lived, costs: nothing. The store has it all, and a later push brings it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.forked import eventually
from tests.mlflow.conftest import ENVIRONMENT, Pushed, push_command
from tests.mlflow.groups import ended_group, long_series
from tests.mlflow.server import Server
from tests.runs.running import nothing_is_left, records
from tests.scripts import run_python

from penstock.runs.store import Store

Push = Callable[..., Pushed]
MANY = 10_000


def test_a_server_that_is_not_there_is_one_error_and_the_store_stays_as_it_was(mortal, store, push):
    ended_group(store, "dead")
    done = push("--mlflow", mortal.uri, "dead")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert mortal.uri in done.stderr
    mortal.start()
    assert push("--mlflow", mortal.uri, "dead").returncode == 0
    assert len(mortal.runs("dead")) == 3


@pytest.mark.parametrize("victim", ["server", "client"])
def test_each_point_is_there_once_after_a_kill_in_the_middle_of_a_push(mortal, store, push, victim):
    (run,) = ended_group(store, "killed", ["finished"])
    points = long_series(store, run, MANY)
    mortal.start()
    words = push_command("--mlflow", mortal.uri, "killed", "--store", str(store.folder))
    process = subprocess.Popen(words, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    eventually(lambda: mortal.rows("metrics") > MANY // 10 or process.poll() is not None)
    if victim == "server":
        mortal.kill()
        _, said = process.communicate()
        assert process.returncode == 2
        assert mortal.uri in said
        mortal.start()
    else:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert mortal.rows("metrics") < MANY, "the kill came too late to prove anything"
    done = push("--mlflow", mortal.uri, "killed")
    assert done.returncode == 0, done.stderr
    (found,) = mortal.runs("killed")
    assert mortal.history(found["run_id"], "many") == points
    assert len(mortal.history(found["run_id"], "loss")) == 5
    assert found["status"] == "FINISHED"


def _run(folder: Path, uri: str, script: str, *words: str) -> Pushed:
    (folder / "train.py").write_text(script)
    (folder / "store").mkdir(mode=0o700)  # one that is new is told of
    words = ("-m", "penstock", "run", "--listeners", "none", "--mlflow", uri, *words, "train.py")
    environment = {**ENVIRONMENT, "PENSTOCK_STORE": str(folder / "store")}
    return run_python(*words, env=environment, cwd=folder, timeout=300)


def test_runs_are_pushed_by_penstock_run(server: Server, tmp_path: Path) -> None:
    script = "import penstock\nfor i in range(3): penstock.log(step=10 * i, loss=i / 2)\nprint('done')\n"
    done = _run(tmp_path, server.uri, script, "-n", "2", "--group", "straight")
    assert done.returncode == 0, done.stderr
    nested = [run for run in server.runs("straight") if "penstock.id" in run["tags"]]
    assert [run["status"] for run in nested] == ["FINISHED"] * 2
    for run in nested:
        assert [point[1:] for point in server.history(run["run_id"], "loss")] == [(0, 0), (0.5, 10), (1, 20)]
        assert server.artifact(run, "output") == b"done\n"


def test_a_dead_server_changes_nothing_of_penstock_run_but_one_sentence(mortal: Server, tmp_path: Path) -> None:
    done = _run(tmp_path, mortal.uri, "print('hello')\nraise SystemExit(7)\n")
    assert (done.returncode, done.stdout) == (7, "hello\n"), done.stderr
    (run,) = records(tmp_path)
    assert (run.status, run.exit_code) == ("failed", 7)
    *waiting, line, ended = done.stderr.splitlines()
    assert ended.startswith(f"penstock: run {run.id}: failed, exit code 7"), done.stderr
    assert all("Ctrl-C ends that" in each for each in waiting), done.stderr  # on a machine that is busy
    assert line.startswith(f"penstock: not all was pushed to {mortal.uri}"), done.stderr
    assert line.endswith(f"the store has it all: penstock runs push --mlflow URI {run.group_id}"), done.stderr


def test_a_run_is_pushed_when_it_ends_while_another_goes_on(server: Server, tmp_path: Path) -> None:
    script = (
        "import pathlib, sys, time, penstock\npenstock.log(step=7, loss=0.25)\n"
        "while sys.argv[1] == 'long' and not pathlib.Path('seen').exists(): time.sleep(0.1)\n"
    )
    (tmp_path / "train.py").write_text(script)
    command = [*push_command()[:3], "run", "--mlflow", server.uri, "--group", "live"]
    command += ["--grid", "n=short,long", "train.py", "{n}"]
    environment = {**ENVIRONMENT, "PENSTOCK_STORE": str(tmp_path / "store")}
    process = subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True)

    def told() -> bool:
        try:
            found = [(run["status"], "penstock.id" in run["tags"]) for run in server.runs("live")]
            return sorted(found) == [("FINISHED", True), ("RUNNING", False)]  # the other is the group
        except (OSError, ValueError):  # neither experiment nor run yet
            return False

    try:
        eventually(told)
    finally:
        (tmp_path / "seen").touch()
        said = process.communicate()[1]
    assert process.returncode == 0, said
    runs = [run for run in server.runs("live") if "penstock.id" in run["tags"]]
    assert [run["status"] for run in runs] == ["FINISHED"] * 2
    for run in runs:
        assert [point[1:] for point in server.history(run["run_id"], "loss")] == [(0.25, 7)]


def test_runs_of_a_penstock_run_that_was_killed_are_pushed_as_they_ended(server: Server, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\nprint('began', flush=True)\ntime.sleep(1000)\n")
    words = ["run", "--listeners", "none", "--mlflow", server.uri, "--group", "orphan", "train.py"]
    environment = {**ENVIRONMENT, "PENSTOCK_STORE": str(tmp_path / "store")}
    command, pipes = [*push_command()[:3], *words], {"stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=environment, cwd=tmp_path, **pipes)
    assert process.stdout
    assert process.stdout.readline() == "began\n"
    process.kill()
    process.communicate()

    def pushed() -> bool:
        try:
            return [run["status"] for run in server.runs("orphan")] == ["KILLED"]
        except (OSError, ValueError):
            return False

    eventually(pushed)
    nothing_is_left(tmp_path)


def test_mlflow_tells_nobody_that_it_is_used(server: Server, store: Store) -> None:
    ended_group(store, "quiet", ["finished"])
    script = (
        "import sys\nfrom penstock.runs.push import Push\nfrom penstock.runs.store import Store\n"
        "with Store.open() as store:\n    Push(store, sys.argv[1]).runs(store.runs('quiet'))\n"
        "from mlflow.telemetry import get_telemetry_client\nassert get_telemetry_client() is None\n"
    )
    asked = {name: value for name, value in ENVIRONMENT.items() if name not in {"CI", "PYTEST_CURRENT_TEST"}}
    done = run_python("-c", script, server.uri, env={**asked, "PENSTOCK_STORE": str(store.folder)}, timeout=300)
    assert done.returncode == 0, done.stderr


def test_without_mlflow_nothing_starts_and_the_error_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('began', 'w')\n")
    script = "import sys; sys.modules['mlflow'] = None; from penstock.cli import main; main()"
    environment = {**ENVIRONMENT, "PENSTOCK_STORE": str(tmp_path / "store")}
    words = ("run", "--mlflow", "http://127.0.0.1:1", "train.py")
    done = run_python("-c", script, *words, env=environment, cwd=tmp_path, timeout=300)
    assert done.returncode == 1
    assert 'pip install "penstock[mlflow]"' in done.stderr
    assert not (tmp_path / "began").exists()
