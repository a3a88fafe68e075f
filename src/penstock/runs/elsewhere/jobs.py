"""Jobs: which runs go to one node, what a job asks for, and the command that is its connection to that node.

For Slurm that is srun: it waits in the queue, passes pipes on, needs no accounting and no shared store, and ends
the job with itself, as runs end with ``penstock run``. With sbatch, and submitit upon it, all that would be ours.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from penstock.basics.packages import require
from penstock.errors import BadSetting
from penstock.runs.elsewhere import NODE
from penstock.runs.record import GroupPlan, RunPlan

_PYTHON = (sys.executable, "-P", "-m")
_ANSWERS_S = 60.0
_TELLS_S = 5.0
_OF_ALL_TASKS = {"SLURM_NTASKS_PER_NODE", "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK"}

_SAYS_NOTHING = re.compile(r"^$|: task \d+: |: No error$")

On = Literal["ray", "slurm"]


class JobPlace(NamedTuple):
    """Where runs go."""

    on: On  # what starts jobs
    cpus: int | None = None  # CPU cores of each job; one a run, if None
    gpus: int | None = None  # GPUs of each job; as many as its runs say that they compute on, if None

    def command(self, runs: Sequence[RunPlan]) -> list[str]:
        """Return the command that starts the job of some runs, and whose pipes are the node's."""
        return self._words(*self._needs(runs), runs[0].name)

    def check(self, groups: Sequence[GroupPlan]) -> None:
        """Check that there is a node for each job, before anything starts."""
        if self.on == "ray":
            require("--on ray", "ray", "ray")
        elif shutil.which("srun") is None:
            raise BadSetting("--on slurm: this machine has no srun; start penstock where Slurm's jobs are started")
        jobs = [[group.runs[i] for i in pack] for group in groups for pack in packed(group.mode, group.runs)]
        for cpus, gpus in sorted({*map(self._needs, jobs)}):
            try:
                words = self._words(cpus, gpus)
                tried = subprocess.run(
                    words, env=variables(), capture_output=True, timeout=_ANSWERS_S, check=False
                )
            except subprocess.TimeoutExpired:
                raise BadSetting(f"--on {self.on}: no answer within {_ANSWERS_S:g} s") from None
            if tried.returncode != 0:
                why = last_words(tried.stderr)
                if self.on == "slurm":
                    why = f"Slurm refuses a job with --cpus {cpus} --gpus {gpus} on one node: {why}"
                raise BadSetting(f"--on {self.on}: {why}")

    def _words(self, cpus: int, gpus: int, name: str = "") -> list[str]:
        """Return the command of a job; without a name, one that checks whether a node is that large.

        Variables such as SLURM_PARTITION have Slurm's other options.
        """
        if self.on == "ray":
            sizes = (str(cpus), str(gpus))
            return [*_PYTHON, "penstock.runs.elsewhere.on_ray", *sizes, *(() if name else ("check",))]
        words = ["srun", "--nodes=1", "--ntasks=1", "--mpi=none", f"--cpus-per-task={cpus}"]
        if gpus:
            words.append(f"--gres=gpu:{gpus}")
        if "SLURM_JOB_ID" in os.environ:  # a step, which else would have all the allocation's memory for itself
            words.append("--mem=0")
        return [*words, *((f"--job-name={name}", *_PYTHON, NODE) if name else ("--test-only", "true"))]

    def _needs(self, runs: Sequence[RunPlan]) -> tuple[int, int]:
        gpus = sum(run.gpus or 0 for run in runs) if self.gpus is None else self.gpus
        return len(runs) if self.cpus is None else self.cpus, gpus


def variables() -> dict[str, str]:
    """Return a job's environment; a step of an allocation is not told what all tasks of that have together."""
    left_out = _OF_ALL_TASKS if "SLURM_JOB_ID" in os.environ else ()
    return {name: value for name, value in os.environ.items() if name not in left_out}


def ended_by_slurm(job: str, errors: bytes) -> str:
    """Return why Slurm has ended a job, or has it end, also without accounting; "" if it has not.

    ``errors`` is what srun printed: it alone does not tell a preemption from a cancellation.
    """
    told = b""
    with suppress(OSError, subprocess.TimeoutExpired):
        words = ["scontrol", "--oneliner", "show", "job", job]
        told = subprocess.run(words, capture_output=True, timeout=_TELLS_S, check=False).stdout if job else b""
    words = told.decode(errors="replace").split()
    facts = {name: value for name, _, value in (word.partition("=") for word in words)}
    # One that is suspended for another goes on later.
    if facts.get("PreemptTime", "None") != "None" and facts.get("SuspendTime", "None") == "None":
        return "Slurm has preempted its job"
    if facts.get("Reason") == "TimeLimit":
        return "its job has reached Slurm's time limit"
    is_cancelled = facts.get("JobState") in ("COMPLETING", "CANCELLED") and b"CANCELLED AT" in errors
    return "its job was cancelled by scancel" if is_cancelled else ""


def packed(mode: str, runs: Sequence[RunPlan]) -> list[list[int]]:
    """Divide runs that start together, by their places, among jobs.

    One job, which is on one node, has those that share a feed, since that is one machine's, or that MPS or MIG has
    share GPUs; each other run has a job of its own.
    """
    packs: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        if mode not in ("alone", "plain"):
            together = mode
        elif mode == "plain" and ":" in run.feed:
            together = run.feed
        elif mode == "plain" and run.share is not None:
            together = f"--share {run.share.name}"
        else:
            together = f"run {place}"
        packs.setdefault(together, []).append(place)
    return list(packs.values())


def last_words(errors: bytes) -> str:
    """Return the line, of what the command of a job printed to standard error, that says why it ended."""
    lines = [line.strip().removeprefix("srun: error: ") for line in errors.decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if not _SAYS_NOTHING.search(line)), "it ended without a word")
