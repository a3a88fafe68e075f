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

    def test_a_job_that_is_cancelled_by_scancel_is_a_killed_run(self, there, slurm):
        one = there(*UNWATCHED, "train.py", "wait")
        one.wait_until_said("run 0")
        slurm.ask("scancel", slurm.ask("squeue", "-h", "-o", "%i").strip())
        assert one.wait() != 0
        assert one.record().status == "killed"
        assert one.kept().startswith("run 0 of ['wait']\n")


def test_without_srun_nothing_starts(servers: dict[str, ForkServer], tmp_path: Path) -> None:
    with launches(Launch, servers, tmp_path) as launch:
        one = launch("--on", "slurm", "/bin/true", PATH="/nowhere")
        assert one.wait() == 2
        assert "this machine has no srun" in one.errors
        assert one.records() == []
