"""`penstock run --on slurm`."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.forked import ForkServer, eventually
from tests.runs.elsewhere import Elsewhere
from tests.runs.running import UNWATCHED, Launch, launches

SAVES = """
import signal
import sys
import time

sent = []

def save(number, _):
    sent.append(number)
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM and sent.count(number) == 1:
        time.sleep(1)
        print("saved", flush=True)
        sys.exit(1)

for number in signal.SIGUSR1, signal.SIGTERM:
    signal.signal(number, save)
print("ready", flush=True)
time.sleep(600)
"""


class TestSlurm(Elsewhere):
    on = "slurm"

    @pytest.fixture
    def there_with_python_path(self, there: Callable[..., Launch]) -> Callable[[Path], Callable[..., Launch]]:
        return lambda folder: partial(there, PYTHONPATH=f"{folder}:{os.environ.get('PYTHONPATH', '')}")

    def test_a_run_waits_for_its_turn_and_is_cancelled_there_by_ctrl_c(self, there, slurm):
        both = there(*UNWATCHED, "--cpus", "3", "-n", "2", "train.py", "wait")
        eventually(lambda: "running" in [run.status for run in both.records()])
        eventually(lambda: "queued and waiting for resources" in both.errors)
        both.signal("SIGINT")
        assert both.wait() == 130
        ends = sorted((run.status, run.exit_code, run.reason) for run in both.records() if run.began)
        assert ends == [("killed", 130, "Ctrl-C")]
        (waited,) = [run for run in both.records() if not run.began]
        assert (waited.status, waited.reason) == ("killed", "never began: Ctrl-C")
        eventually(lambda: not slurm.ask("squeue", "-h"))

    @pytest.mark.parametrize(
        ("words", "why"),
        [
            ("scancel {job}", "its job was cancelled by scancel"),
            ("scontrol update JobId={job} EndTime=now+1", "its job has reached Slurm's time limit"),
            ("srun --partition=first --cpus-per-task=4 true", "Slurm has preempted its job"),
        ],
        ids=["scancel", "time limit", "preemption"],
    )
    def test_a_job_that_slurm_ends_has_time_and_is_a_killed_run_whose_reason_says_why(
        self, there, slurm, tmp_path, words, why
    ):
        (tmp_path / "saves.py").write_text(SAVES)
        one = there(*UNWATCHED, "saves.py")
        one.wait_until_said("ready")
        slurm.ask("scancel", "--signal=USR1", slurm.job())
        one.wait_until_said("SIGUSR1")
        slurm.ask(*words.format(job=slurm.job()).split())
        assert one.wait() == 1
        record = one.record()
        assert (record.status, record.exit_code, record.reason) == ("killed", 1, why)
        kept = one.kept()
        if "limit" in why:  # where Slurm itself sends two, as to a script below a bare srun
            kept = kept.replace("SIGTERM\n" * 2, "SIGTERM\n")
        assert kept == "ready\nSIGUSR1\nSIGTERM\nsaved\n"

    def test_what_heeds_no_signal_is_killed_and_its_reason_says_why(self, there, slurm):
        one = there(*UNWATCHED, "sh", "-c", "trap '' TERM; echo ready; while true; do sleep 0.1; done")
        one.wait_until_said("ready")
        slurm.ask("scancel", slurm.job())
        assert one.wait() == 1
        assert (one.record().status, one.record().reason) == ("killed", "its job was cancelled by scancel")

    def test_runs_in_an_allocation_go_side_by_side_each_as_one_task(self, there, slurm):
        slurm.ask("salloc", "--no-shell", "--ntasks=2", "--ntasks-per-node=2", "--mem=100")
        allocation = {"JOB_ID": slurm.job(), "MEM_PER_NODE": "100", "NTASKS_PER_NODE": "2", "GPUS_PER_NODE": "4"}
        variables = {f"SLURM_{name}": value for name, value in allocation.items()}
        both = there(
            *UNWATCHED, "-n", "2", "sh", "-c", "echo ${SLURM_NTASKS_PER_NODE-none}; sleep 600", **variables
        )
        both.wait_until_said("#0 | none")
        both.wait_until_said("#1 | none")
        assert [run.status for run in both.records()] == ["running", "running"]
        slurm.ask("scancel", slurm.job())
        assert both.wait() != 0
        assert {run.reason for run in both.records()} == {"its job was cancelled by scancel"}


def test_without_srun_nothing_starts(servers: dict[str, ForkServer], tmp_path: Path) -> None:
    with launches(Launch, servers, tmp_path) as launch:
        one = launch("--on", "slurm", "/bin/true", PATH="/nowhere")
        assert one.wait() == 2
        assert "this machine has no srun" in one.errors
        assert one.records() == []
