"""The group of runs that a command line asks for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from penstock.errors import BadSetting
from penstock.runs.plan import GroupPlan
from penstock.runs.spec.command import named, runs_of
from penstock.runs.spec.gpus import Gpus
from penstock.runs.spec.grid import grid_from
from penstock.runs.spec.names import base_name


def group_of(
    words: Sequence[str],
    gpus: Gpus,
    *,
    repeat: int = 1,
    name: str = "",
    group: str = "",
    mode: str = "",
    grid: Sequence[str] = (),
    take: int | None = None,
    seed: int = 0,
    listeners: tuple[str, ...] | None = None,
    devices: Sequence[str] = (),
    mps_threads: float | None = None,
    mps_memory_bytes: int | None = None,
    profile: Sequence[str] = (),
    **common: Any,
) -> GroupPlan:
    """Plan the group that a command line asks for.

    Args:
        words: A script or a command, and its arguments.
        gpus: GPUs that it can ask for.
        repeat: How often each combination is run.
        name: Name of the runs; that of the script or command, if empty.
        group: Name of the group; that of the runs, if empty.
        mode: Mode of the group; "alone" for one run and "plain" for several, if empty.
        grid: Options such as ``"lr=0.1,0.03"``.
        take: How many of the grid's combinations are drawn; None for all.
        seed: Random seed of that.
        listeners: As ``GroupPlan`` has them.
        devices: GPUs that each run sees, by number or UUID; empty for all.
        profile: Profilers, each with its options.
        mps_threads, mps_memory_bytes, common: As each run's ``RunPlan`` has them.

    Raises:
        BadSetting: there is no such script, command, mode or device, or the grid makes no sense.
    """
    if mode != "mps" and (mps_threads is not None or mps_memory_bytes is not None):
        raise BadSetting(f"--mps-{'memory' if mps_threads is None else 'threads'}: only with --mode mps")
    runs = named(
        runs_of(
            "the command line",
            words,
            os.getcwd(),
            name=name,
            grid=grid_from(grid),
            take=take,
            seed=seed,
            repeats=repeat,
            devices=gpus.devices("--devices", devices),
            mps_threads=mps_threads,
            mps_memory_bytes=mps_memory_bytes,
            profile=gpus.profilers("--profile", profile),
            **common,
        )
    )
    plan = GroupPlan(
        name=group or name or base_name(words),
        mode=mode or ("plain" if len(runs) > 1 else "alone"),
        runs=runs,
        listeners=listeners,
    )
    return gpus.admit("--mode", plan)
