"""`penstock run`, keepers, commands are killed, or leave others behind: nothing is left, and all is told."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.forked import eventually
from tests.runs.running import Launch, left, nothing_is_left, records

import penstock

pytestmark = pytest.mark.whole

LEAVES = """
sh -c 'trap "" TERM; echo stubborn; while :; do sleep 60; done' &
setsid sh -c 'sleep 60' &
(setsid sh -c 'echo daemon; exec sleep 60' & ) &
echo waits
while [ ! -e go ]; do sleep 0.02; done
"""


def leaving(launch: Callable[..., Launch]) -> Launch:
    one = launch("sh", "-c", LEAVES)
    for said in ("stubborn", "daemon", "waits"):
        one.wait_until_said(said)
    eventually(lambda: one.record().status == "running")
    return one


def test_what_a_command_leaves_behind_is_ended_with_it(launch, tmp_path: Path):
    one = leaving(launch)
    assert len(left(tmp_path)) >= 7
    tmp_path.joinpath("go").touch()
    assert one.wait() == 0
    assert one.record().status == "finished"
    nothing_is_left(tmp_path)


def test_when_a_keeper_is_killed_its_run_is_lost_and_nothing_of_it_is_left(launch, tmp_path: Path):
    one = leaving(launch)
    os.kill(one.record().keeper[0], signal.SIGKILL)
    assert one.wait() == 1
    assert one.record().status == "lost"
    nothing_is_left(tmp_path)


def test_when_penstock_run_is_killed_its_runs_are_ended(launch, tmp_path: Path):
    one = leaving(launch)
    one.signal("SIGKILL")
    eventually(lambda: one.record().status == "killed")
    assert one.record().reason == "penstock run, which had started it, has disappeared"
    nothing_is_left(tmp_path)


def test_when_a_detached_penstock_run_is_killed_its_run_goes_on_and_no_other_begins(launch, tmp_path: Path):
    launched = launch("--detach", "-n", "2", "--mode", "alone", "sh", "-c", "until [ -e go ]; do sleep 0.02; done")
    assert launched.wait() == 0
    eventually(lambda: launched.records()[0].status == "running")
    keeper = launched.records()[0].keeper[0]
    guard = parent(keeper)
    os.kill(parent(guard), signal.SIGKILL)
    eventually(lambda: launched.records()[1].status == "lost")
    assert launched.records()[0].status == "running"
    tmp_path.joinpath("go").touch()
    eventually(lambda: launched.records()[0].status == "finished")
    nothing_is_left(tmp_path)


SHARES = """
import numpy as np, penstock
def make_loader():
    return penstock.ArraySource({"id": np.arange(10)}, batch_size=5)
with penstock.share(make_loader, name="shared") as loader:
    print(len(next(iter(loader))["id"]))
"""


def test_a_feeder_that_a_run_has_started_goes_on_for_others(launch, tmp_path: Path):
    tmp_path.joinpath("train.py").write_text(SHARES)
    one = launch("train.py")
    assert (one.wait(), one.output) == (0, "5\n"), one.errors
    assert [feed.name for feed in penstock.feeds()] == ["shared"]
    penstock.stop("shared")


def test_a_command_that_ignores_the_end_is_killed(launch):
    one = launch("--time-limit", "0.5s", "sh", "-c", "trap '' TERM; while :; do sleep 60; done")
    assert one.wait() == 137
    assert one.record().status == "timed_out"


def test_a_keeper_that_does_not_listen_is_killed_by_the_third_signal(launch, tmp_path: Path):
    one = leaving(launch)
    keeper = one.record().keeper[0]
    os.kill(keeper, signal.SIGSTOP)
    os.kill(parent(keeper), signal.SIGSTOP)
    eventually(lambda: one.signal("SIGINT") or one.ended)
    assert one.wait() != 0
    assert one.record().status == "lost"
    nothing_is_left(tmp_path)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("times", [4, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_kills_at_random_leave_nothing_and_every_status_is_right(launch, tmp_path: Path, times: int):
    folder, chance = tmp_path, random.Random(times)
    for _ in range(times):
        known = len(records(folder))
        group = launch("-n", "2", "sh", "-c", "sleep 60 & sleep 60 & setsid sleep 60 & wait")
        pause_s = chance.choice([0.0, 0.05, 0.1, 0.2, 0.4])
        eventually(lambda: len(records(folder)) == known + 2)  # noqa: B023
        time.sleep(pause_s)
        victim = chance.choice([group.pid, *left(folder)])
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        group.signal("SIGINT")
        group.signal("SIGINT")
        group.wait()
        nothing_is_left(folder)
        told = records(folder)
        assert len(told) == known + 2
        assert not {record.status for record in told} & {"waiting", "running", "finished"}, told[-2:]
