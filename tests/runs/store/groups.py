"""Groups of runs that do nothing, and processes that keep them."""

from __future__ import annotations

import os

from penstock.runs.record import GroupPlan, RunPlan
from penstock.runs.store.database import this_process

DEAD = (os.getpid(), 1)
"""A keeper whose number another process has by now."""


def group(runs: int = 2, name: str = "group", mode: str = "plain") -> GroupPlan:
    plans = (
        RunPlan(command=("true",), name=f"run-{i}", directory="/", parameters={"i": str(i)}) for i in range(runs)
    )
    return GroupPlan(name=name, mode=mode, runs=tuple(plans))


def living() -> tuple[int, int]:
    noted = this_process()
    return noted.pid, noted.started_ticks
