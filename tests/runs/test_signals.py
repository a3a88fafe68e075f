"""Signals to a run, whoever gets them: its script's handler runs once, has its time, and its code comes back."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.forked import eventually
from tests.runs.running import UNWATCHED, Launch, left

import penstock
from penstock.runs.keeper import command
from penstock.runs.launch import groups

SCRIPT = """
import os, signal, sys, time
NAMES = "INT TERM HUP QUIT USR1 USR2 ALRM VTALRM IO"
def save(number, _):
    print("told", signal.Signals(number).name, flush=True)
    time.sleep(float(sys.argv[1]))
    print("saved", flush=True)
    sys.exit(7)
for name in NAMES.split():
    signal.signal(signal.Signals["SIG" + name], save)
"""
RUNS = {
    "run": (
        (*UNWATCHED, "--no-watch-dataloader", "--no-watch-metrics"),
        'print("ready", os.getpid(), flush=True)\nwhile True: time.sleep(0.05)',
    ),
    "share": (
        ("--share", "--listeners", "none"),
        """
import torch
from torch.utils.data import DataLoader, TensorDataset
if __name__ == "__main__":
    loader = DataLoader(TensorDataset(torch.arange(200)), batch_size=10)
    for number, batch in enumerate(batch for _ in range(10**6) for batch in loader):
        time.sleep(0.02)
        if number == 5:
            print("ready", os.getpid(), flush=True)
""",
    ),
}
# Programs that start another, as accelerate and torchrun do, and that handle no or some signals.
IN_ITS_GROUP = "import subprocess, sys\nsys.exit(subprocess.Popen([sys.executable, *sys.argv[1:]]).wait())"
IN_ITS_OWN = """
import signal, subprocess, sys
def forward(number, _):
    below.send_signal(number)
for name in "INT TERM HUP QUIT".split():
    signal.signal(signal.Signals["SIG" + name], forward)
below = subprocess.Popen([sys.executable, *sys.argv[1:]], start_new_session=True)
sys.exit(below.wait())
"""
BELOW = {"": None, "in its group": IN_ITS_GROUP, "in its own": IN_ITS_OWN}
NAMES = ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "ALRM", "VTALRM", "IO"]
RECEIVERS = ["launcher", "script", "group", "every"]

OF_A_KIND = ["TERM", "USR1", "ALRM"]
"""A signal that ends a run, one that is a notice, and a timer's."""
SHARED = [("TERM", "launcher"), ("USR1", "script"), ("USR1", "group"), ("TERM", "every")]

whole, soak = pytest.mark.whole, pytest.mark.soak


def rest(is_one_of_a_kind: bool) -> pytest.MarkDecorator:
    """Mark what is one more combination: all are tried in a soak."""
    return whole if is_one_of_a_kind else soak


def sent(one: Launch, folder: Path, name: str, receiver: str) -> None:
    number, script = signal.Signals[f"SIG{name}"], int(one.output.split("ready ")[1].split()[0])
    if receiver == "launcher":
        one.signal(number.name)
    elif receiver == "group":
        os.killpg(os.getpgid(script), number)
    else:
        for pid in [script] if receiver == "script" else [one.pid, *sorted(left(folder))]:
            os.kill(pid, number)


def started(launch: Callable[..., Launch], folder: Path, kind: str = "run", below: str = "", save_s: float = 0.3):
    options, body = RUNS[kind]
    (folder / "train.py").write_text(SCRIPT + body)
    if around := BELOW[below]:
        (folder / "around.py").write_text(around)
    one = launch(*options, *(["around.py"] if around else []), "train.py", str(save_s))
    ready(one)
    eventually(lambda: one.record().status == "running")
    return one


def ready(one: Launch) -> Launch:
    """Wait until its script handles signals."""
    eventually(lambda: re.search(r"ready \d+.*\n", one.output) or one.ended)
    return one


TABLE = [
    *[(name, RECEIVERS[place % 4], "run", "", 0.3) for place, name in enumerate(NAMES)],  # one diagonal
    *[
        pytest.param(name, RECEIVERS[(place + more) % 4], "run", "", 0.3, marks=rest(name in OF_A_KIND))
        for place, name in enumerate(NAMES)
        for more in (1, 2, 3)
    ],
    *[
        pytest.param(name, receiver, "share", "", 0.3, marks=rest((name, receiver) in SHARED))
        for name in NAMES
        for receiver in RECEIVERS
    ],
    *[
        pytest.param(name, "launcher", "run", "in its group", 2.5, marks=rest(name in OF_A_KIND))
        for name in NAMES[4:]
    ],
    *[pytest.param(name, "launcher", "run", "in its own", 2.5, marks=rest(name in OF_A_KIND)) for name in NAMES],
    *[pytest.param(name, "every", "run", "", 8, marks=soak) for name in NAMES],
    *[pytest.param(name, "launcher", "share", "", 8, marks=soak) for name in NAMES],
]


@pytest.mark.parametrize(("name", "receiver", "kind", "below", "save_s"), TABLE)
def test_a_handler_runs_once_has_its_time_and_its_code_comes_back(
    launch, tmp_path: Path, name: str, receiver: str, kind: str, below: str, save_s: float
):
    one = started(launch, tmp_path, kind, below, save_s)
    sent(one, tmp_path, name, receiver)
    assert one.wait() == 7, one.errors
    assert one.output.split("ready ")[1].split()[1:] == ["told", f"SIG{name}", "saved"]
    # Who ends a run is told; after a notice, or without us, its own words count.
    ends = name in NAMES[:4] and receiver in ("launcher", "every")
    assert (one.record().status, one.record().exit_code) == ("killed" if ends else "failed", 7)
    for feed in penstock.feeds():
        penstock.stop(feed.name)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "code", "receiver"),
    [
        *[("INT", 130, "launcher"), ("TERM", 143, "every"), ("HUP", 129, "every"), ("QUIT", 131, "launcher")],
        *[pytest.param("INT", 130, "every", marks=soak), pytest.param("TERM", 143, "launcher", marks=soak)],
        *[pytest.param("HUP", 129, "launcher", marks=soak), pytest.param("QUIT", 131, "every", marks=soak)],
    ],
)
def test_what_saves_below_a_command_that_died_of_the_signal_is_not_killed(
    launch, tmp_path: Path, name: str, code: int, receiver: str
):
    one = started(launch, tmp_path, below="in its group", save_s=3.0)
    sent(one, tmp_path, name, receiver)
    assert one.wait() == code  # of what was started, as without penstock run
    assert one.output.split("ready ")[1].split()[1:] == ["told", f"SIG{name}", "saved"]
    assert one.record().status == "killed"


@pytest.mark.parametrize("name", [pytest.param("TERM", marks=whole), pytest.param("USR1", marks=soak)])
def test_a_handler_below_torchrun_has_its_time(launch, tmp_path: Path, name: str):
    (tmp_path / "train.py").write_text(SCRIPT + RUNS["run"][1])
    words = ("-m", "torch.distributed.run", "--nproc-per-node", "1", "train.py", "2.5")
    one = launch(*UNWATCHED, sys.executable, *words)
    ready(one)
    sent(one, tmp_path, name, "launcher")
    assert one.wait() == 1  # torchrun's own, whatever the script's is
    assert one.output.split("ready ")[1].split()[1:] == ["told", f"SIG{name}", "saved"]


WITH_WORKERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
if __name__ == "__main__":
    # Of one long epoch: what a handler raises while Python forks a worker may be lost, with or without us.
    loader = DataLoader(TensorDataset(torch.arange(10**6)), batch_size=10, num_workers=2)
    for number, batch in enumerate(loader):
        time.sleep(0.02)
        if number == 5:
            print("ready", os.getpid(), flush=True)
"""


@pytest.mark.parametrize("name", [pytest.param("TERM", marks=whole), pytest.param("USR1", marks=soak)])
def test_workers_of_a_script_that_handles_a_signal_get_none_and_do_not_end_its_saving(
    launch, tmp_path: Path, name: str
):
    (tmp_path / "train.py").write_text(SCRIPT + WITH_WORKERS)
    one = launch(*UNWATCHED, "train.py", "1")
    ready(one)
    sent(one, tmp_path, name, "launcher")
    assert one.wait() == 7, one.errors
    assert one.output.split("ready ")[1].split()[1:] == ["told", f"SIG{name}", "saved"]


def test_only_a_second_ctrl_c_kills_and_other_signals_come_once(launch, tmp_path: Path):
    one = started(launch, tmp_path, save_s=60)
    one.signal("SIGTERM")
    one.wait_until_said("told SIGTERM")
    one.signal("SIGCONT")
    one.signal("SIGTERM")
    one.signal("SIGINT")
    one.wait_until_said("told SIGINT")  # amid what it does at the first
    time.sleep(groups._ONE_SIGNAL_S)
    one.signal("SIGTERM")
    one.signal("SIGINT")
    assert one.wait() == 137
    assert one.output.count("told") == 2
    assert one.record().reason == "killed by a second Ctrl-C"


def test_a_notice_comes_each_time_and_holds_no_waiting_run_up(launch, tmp_path: Path):
    program = "trap 'echo heard' USR1; echo ready; while [ ! -e go ]; do sleep 0.02; done"
    two = launch(*UNWATCHED, "-n", "2", "--mode", "alone", "sh", "-c", program)
    two.wait_until_said("ready")
    two.signal("SIGUSR1")
    eventually(lambda: two.output.count("heard") == 1)
    time.sleep(groups._ONE_SIGNAL_S)
    two.signal("SIGUSR1")
    eventually(lambda: two.output.count("heard") == 2)
    (tmp_path / "go").touch()
    assert two.wait() == 0
    assert [record.status for record in two.records()] == ["finished", "finished"]


@pytest.mark.parametrize("name", ["TERM", "USR2", "QUIT"])
def test_a_run_that_does_not_handle_a_signal_dies_of_it_and_its_reason_says_so(launch, name: str):
    one = launch(*UNWATCHED, "sh", "-c", "echo ready; exec sleep 60")
    one.wait_until_said("ready")
    one.signal(f"SIG{name}")
    assert one.wait() == 128 + signal.Signals[f"SIG{name}"]
    assert (one.record().status, one.record().reason) == ("killed", f"SIG{name} to penstock run")


def test_a_keeper_and_its_guard_heed_no_signal_but_that_of_runs_stop(launch, command, tmp_path: Path):
    one = launch(*UNWATCHED, "sh", "-c", "echo ready; exec sleep 60")
    one.wait_until_said("ready")
    keeper = eventually(lambda: one.record().keeper)[0]
    guard = int(Path(f"/proc/{keeper}/stat").read_text().rpartition(")")[2].split()[1])
    for name in NAMES:
        for pid in (keeper, guard):
            os.kill(pid, signal.Signals[f"SIG{name}"])
    time.sleep(0.2)
    assert one.record().status == "running"
    assert command("runs", "stop", one.record().id, "--store", str(tmp_path / "store")).returncode == 0
    assert one.wait() == 143
    assert one.record().reason.startswith("ended by ")


STUBBORN = """
import os, signal, time
for name in "INT TERM HUP QUIT USR1".split():
    signal.signal(signal.Signals["SIG" + name], lambda number, _: print("told", number, flush=True))
print("ready", os.getpid(), flush=True)
while True: time.sleep(0.05)
"""


@pytest.fixture
def stubborn(launch, tmp_path: Path) -> Callable[..., Launch]:
    """Start a command that dies of a signal, with one below it that never ends by itself."""
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    return lambda *options: ready(
        launch(*UNWATCHED, *options, "sh", "-c", f"{sys.executable} stubborn.py & exec sleep 60")
    )


@pytest.mark.whole
@pytest.mark.parametrize("first", ["", "TERM"])
def test_what_outlives_its_command_is_killed_once_runs_stop_says_so(stubborn, command, tmp_path: Path, first: str):
    one = stubborn()
    if first:  # what was passed on has its time; the record says that the run has ended
        one.signal(f"SIG{first}")
        eventually(lambda: one.record().status == "killed")
    assert command("runs", "stop", one.record().id, "--store", str(tmp_path / "store")).returncode == 0
    assert one.wait() == 143
    assert not left(tmp_path)


@pytest.mark.whole
def test_what_outlives_its_command_is_killed_after_a_time_limit(stubborn, tmp_path: Path):
    assert stubborn("--time-limit", "3s").wait() == 143
    assert not left(tmp_path)


@pytest.mark.whole
def test_a_notice_lets_nobody_outlive_a_run_for_ever(monkeypatch):
    monkeypatch.setattr(command, "_NOTICE_S", -1.0)
    heard = command.Signals()
    os.close(heard.fd)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        heard.tell(signal.SIGINT, [os.getpid()])
        assert heard.heeds(os.getpid())
        heard.tell(signal.SIGUSR1, [os.getpid()])
        assert not heard.heeds(os.getpid())
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


@pytest.mark.whole
def test_a_command_that_a_signal_to_all_has_missed_gets_it_from_its_keeper(launch, tmp_path: Path):
    one = launch(*UNWATCHED, "sh", "-c", "echo ready $$; exec sleep 60")
    ready(one)
    eventually(lambda: one.record().keeper)
    command = int(one.output.split("ready ")[1].split()[0])
    for pid in {one.pid, *left(tmp_path)} - {command}:  # as pkill -f penstock
        os.kill(pid, signal.SIGTERM)
    assert one.wait() == 143
    assert one.record().status == "killed"


SLOW = "class Slow:\n    def __del__(self, sleep=time.sleep): sleep({})\nslow = Slow()\n"


@pytest.mark.parametrize(
    ("order", "save_s", "ends_s"),
    [
        ("launcher first", 0.3, 1.2),
        pytest.param("launcher first", 0.3, 12, marks=whole),
        pytest.param("script first", 0, 4, marks=whole),
        pytest.param("keeper late", 0, 4, marks=whole),
    ],
)
def test_a_script_that_has_had_a_signal_may_end_as_slowly_as_it_likes(
    launch, tmp_path: Path, order: str, save_s: float, ends_s: float
):
    """While Python takes its modules down, it handles no signal any more: it would die of another."""
    (tmp_path / "train.py").write_text(SCRIPT + SLOW.format(ends_s) + RUNS["run"][1])
    one = ready(launch(*RUNS["run"][0], "train.py", str(save_s)))
    eventually(lambda: one.record().status == "running")
    script, keeper = int(one.output.split("ready ")[1].split()[0]), one.record().keeper[0]
    if order == "launcher first":
        sent(one, tmp_path, "TERM", "every")
    else:
        for pid in (script, one.pid) if order == "script first" else (one.pid,):
            os.kill(pid, signal.SIGTERM)
        one.wait_until_said("saved")
        time.sleep(0.2 if order == "script first" else 0)
        os.kill(keeper, signal.SIGTERM)
    assert one.wait() == 7, one.errors
    assert one.output.count("told") == 1


def test_who_has_lost_its_parent_gets_what_its_group_gets(launch, tmp_path: Path):
    (tmp_path / "orphan.py").write_text(SCRIPT + RUNS["run"][1])
    one = ready(launch(*UNWATCHED, "sh", "-c", f"({sys.executable} orphan.py 0.3 &); exec sleep 60"))
    one.signal("SIGINT")
    assert one.wait() == 130
    assert one.output.split("ready ")[1].split()[1:] == ["told", "SIGINT", "saved"]


READS = """
import os, signal, sys, time
import numpy as np, penstock
def make_loader():
    return penstock.ArraySource({"id": np.arange(100)}, batch_size=5)
told = []
for name in "INT TERM HUP QUIT USR1 USR2 ALRM VTALRM IO".split():
    signal.signal(signal.Signals["SIG" + name], lambda number, _: told.append(number))
with penstock.share(make_loader, name="shared", linger=60) as loader:
    seen = []
    for batch in loader:
        seen += batch["id"].tolist()
        if len(seen) == 20:
            print("ready", os.getpid(), penstock.feeds()[0].pid, flush=True)
            while not told:
                time.sleep(0.02)
            time.sleep(0.5)
    print(sorted(seen) == list(range(100)), len(told), penstock.feeds()[0].pid, flush=True)
"""


@pytest.mark.whole
@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "USR1"])
def test_a_feeder_that_gets_a_signal_goes_on_while_it_has_trainers(launch, tmp_path: Path, name: str):
    (tmp_path / "train.py").write_text(READS)
    one = launch(*UNWATCHED, "train.py")
    ready(one)
    feeder = one.output.split()[2]
    sent(one, tmp_path, name, "every")
    assert one.wait() == 0, one.errors
    assert one.output.split()[3:] == ["True", "1", feeder]
    if name != "USR1":  # then it does not linger
        eventually(lambda: not penstock.feeds())
    else:
        penstock.stop("shared")
