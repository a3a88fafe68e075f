"""The group of runs that a command line asks for."""

from __future__ import annotations

import os
from collections.abc import Sequence

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
    time_limit_s: float | None = None,
    grid: Sequence[str] = (),
    take: int | None = None,
    seed: int = 0,
    listeners: tuple[str, ...] | None = None,
    devices: Sequence[str] = (),
    mps_threads: float | None = None,
    mps_memory_bytes: int | None = None,
    watch_dataloader: bool = False,
    profile: Sequence[str] = (),
) -> GroupPlan:
    """Plan the group that a command line asks for.

    Args:
        words: A script or a command, and its arguments.
        gpus: GPUs that it can ask for.
        repeat: How often each combination is run.
        name: Name of the runs; that of the script or command, if empty.
        group: Name of the group; that of the runs, if empty.
        mode: Mode of the group; "alone" for one run and "plain" for several, if empty.
        time_limit_s: Seconds after which each run is ended.
        grid: Options such as ``"lr=0.1,0.03"``.
        take: How many of the grid's combinations are drawn; None for all.
        seed: Random seed of that.
        listeners: Names of what is sampled; None for all that can run here.
        devices: GPUs that each run sees, by number or UUID; empty for all.
        mps_threads: Percentage of a GPU's threads that each run may use in mode mps; None for all.
        mps_memory_bytes: Memory of each GPU that each run may use in mode mps; None for all.
        watch_dataloader: Whether the waits for plain DataLoaders are kept.
        profile: Profilers, each with its options.

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
            time_limit_s=time_limit_s,
            devices=gpus.devices("--devices", devices),
            mps_threads=mps_threads,
            mps_memory_bytes=mps_memory_bytes,
            watch_dataloader=watch_dataloader,
            profile=gpus.profilers("--profile", profile),
        )
    )
    plan = GroupPlan(
        name=group or name or base_name(words),
        mode=mode or ("plain" if len(runs) > 1 else "alone"),
        runs=runs,
        listeners=listeners,
    )
    return gpus.admit("--mode", plan)
