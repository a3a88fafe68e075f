"""Descriptors that a keeper holds, and runs that are started twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace
from tests.forked import eventually
from tests.runs.launch.test_launcher import added, until
from tests.runs.running import nothing_is_left

from penstock.linux.files import taken
from penstock.runs.launch.launched import Launched
from penstock.runs.launch.launcher import NO_TERMINAL, Launcher, RunEnded, RunPrinted
from penstock.runs.modes.mode import Mode
from penstock.runs.store import Store

STARTER = """
import os, signal, sys
from pathlib import Path
from penstock.errors import BadSetting
from penstock.linux.files import taken
from penstock.runs.launch.launcher import Launcher
from penstock.runs.store import Store

folder, id, lock = sys.argv[1:]
store = Store.open(Path(folder))
record = store.run(id)
if lock:
    Launcher(store, orphans="keep").start(record, held=[taken(Path(lock), os.O_RDWR)])
    os.kill(os.getpid(), signal.SIGKILL)
print("ready", flush=True)
input()
with Launcher(store) as launcher:
    try:
        launcher.start(record, listeners=())
    except BadSetting as error:
        print(error)
    while launcher.running:
        for event in launcher.events():
            print(event, flush=True)
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    os.mkfifo(tmp_path / "go")
    (tmp_path / "lock").touch()
    with Store.open(tmp_path / "store") as store:
        yield store
    nothing_is_left(tmp_path)


def starter(store: Store, id: str, lock: Path | str = "") -> subprocess.Popen[str]:
    words = [sys.executable, "-c", STARTER, str(store.folder), id, str(lock)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def is_free(lock: Path) -> bool:
    try:
        os.close(taken(lock, os.O_RDWR))
    except BlockingIOError:
        return False
    return True


def output(store: Store, id: str) -> str:
    return (store.folder_of(id) / "output").read_text()


def go(folder: Path) -> None:
    with (folder / "go").open("w") as file:
        file.write("go\n")


def test_a_lock_that_a_keeper_holds_is_free_once_nothing_is_left_of_the_run(store: Store, tmp_path: Path):
    lock = tmp_path / "lock"
    script = f"""
for fd in /proc/$$/fd/*; do readlink $fd; done
sh -c 'trap "" TERM; echo $$ > {tmp_path}/child; while :; do sleep 1; done' &
read line < {tmp_path}/go
"""
    (record,) = added(store, script)
    with Launcher(store, orphans="keep") as launcher, closing(os.fdopen(taken(lock, os.O_RDWR))) as file:
        launcher.start(record, listeners=(), held=[file.fileno()])
    child = int(eventually(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text()))
    assert not is_free(lock)
    go(tmp_path)
    eventually(lambda: store.run(record.id).status == "finished")
    free = is_free(lock)
    assert not (free and psutil.pid_exists(child)), "a child of the run's is left"
    eventually(lambda: is_free(lock))
    assert not psutil.pid_exists(child)
    assert "/dev/null" in output(store, record.id)
    assert str(lock) not in output(store, record.id)


def test_a_lock_stays_taken_though_what_started_the_run_was_killed_at_once(store: Store, tmp_path: Path):
    (record,) = added(store, f"read line < {tmp_path}/go")
    lock = tmp_path / "lock"
    with starter(store, record.id, lock) as killed:
        assert killed.wait() == -9
    assert not is_free(lock)
    eventually(lambda: store.run(record.id).status == "running")
    assert not is_free(lock)
    go(tmp_path)
    eventually(lambda: is_free(lock))
    assert store.run(record.id).status == "finished"


def test_a_lock_stays_taken_while_a_killed_keeper_leaves_children(store: Store, tmp_path: Path):
    (record,) = added(store, f"sleep 1000 & echo $! > {tmp_path}/child; wait")
    with Launcher(store) as launcher:
        with closing(os.fdopen(taken(tmp_path / "lock", os.O_RDWR))) as file:
            launcher.start(record, listeners=(), held=[file.fileno()])
        child = int(eventually(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text()))
        keeper = eventually(lambda: store.run(record.id).keeper)[0]
        guard = psutil.Process(keeper).parent()
        assert guard
        guard.suspend()
        # Until it has stopped in fact it may still wait for the keeper, and reap it.
        eventually(lambda: guard.status() == psutil.STATUS_STOPPED)
        try:
            os.kill(keeper, signal.SIGKILL)
            eventually(lambda: psutil.Process(keeper).status() == psutil.STATUS_ZOMBIE)
            assert psutil.pid_exists(child)
            assert not is_free(tmp_path / "lock")
        finally:
            guard.resume()
        eventually(lambda: is_free(tmp_path / "lock"))
        assert not psutil.pid_exists(child)
        until(launcher, RunEnded(record.id))


def test_a_keeper_whose_run_another_has_begun_ends_its_command_and_records_nothing(store: Store, tmp_path: Path):
    (record,) = added(store, f"echo hello; read line < {tmp_path}/go; exit 3")
    with Launcher(store) as launcher:
        launcher.start(record, listeners=())
        until(launcher, RunPrinted(record.id, 1, b"hello\n"))
        begun = store.run(record.id)
        second = Launched(store, record, Mode(), orphans="end", terminal=NO_TERMINAL, stdin=False, variables={})
        packets = list(iter(second.receive, None))
        second.close()
        assert {"said": "another keeper has begun it: this start of it was ended"} in packets
        assert not [packet for packet in packets if isinstance(packet, dict) and "began" in packet]
        assert replace(store.run(record.id), seconds=0.0) == replace(begun, seconds=0.0)
        assert output(store, record.id) == "hello\n"
        go(tmp_path)
        until(launcher, RunEnded(record.id))
    assert (store.run(record.id).status, store.run(record.id).exit_code) == ("failed", 3)


def test_of_two_who_start_a_run_at_once_one_does(store: Store, tmp_path: Path):
    (record,) = added(store, f"echo hello; read line < {tmp_path}/go; echo $$ >> {tmp_path}/ended")
    with starter(store, record.id) as one, starter(store, record.id) as other:
        for each in (one, other):
            assert each.stdin and each.stdout and each.stdout.readline() == "ready\n"
        for each in (one, other):
            assert each.stdin
            each.stdin.write("\n")
            each.stdin.flush()
        eventually(lambda: one.poll() is not None or other.poll() is not None)
        loser, winner = (one, other) if one.poll() is not None else (other, one)
        go(tmp_path)
        assert winner.wait() == loser.wait() == 0
        assert winner.stdout and loser.stdout
        assert "RunBegan" in winner.stdout.read()
        said = loser.stdout.read()
        assert "another keeper has begun it" in said or "it has begun already" in said
    assert store.run(record.id).status == "finished"
    assert output(store, record.id) == "hello\n"
    assert len((tmp_path / "ended").read_text().splitlines()) == 1
