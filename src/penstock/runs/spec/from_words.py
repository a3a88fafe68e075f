"""The group of runs that a command line asks for."""

from __future__ import annotations

import os
from collections.abc import Sequence

from penstock.runs.command_line import check_mode
from penstock.runs.plan import GroupPlan
from penstock.runs.spec.command import named, runs_of
from penstock.runs.spec.grid import grid_from
from penstock.runs.spec.names import base_name


def group_of(
    words: Sequence[str],
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
) -> GroupPlan:
    """Plan the group that a command line asks for.

    Args:
        words: A script or a command, and its arguments.
        repeat: How often each combination is run.
        name: Name of the runs; that of the script or command, if empty.
        group: Name of the group; that of the runs, if empty.
        mode: Mode of the group; "alone" for one run and "plain" for several, if empty.
        time_limit_s: Seconds after which each run is ended.
        grid: Options such as ``"lr=0.1,0.03"``.
        take: How many of the grid's combinations are drawn; None for all.
        seed: Random seed of that.
        listeners: Names of what is sampled; None for all that can run here.

    Raises:
        BadSetting: there is no such script, command or mode, or the grid makes no sense.
    """
    if mode:
        check_mode("--mode", mode)
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
        )
    )
    return GroupPlan(
        name=group or name or base_name(words),
        mode=mode or ("plain" if len(runs) > 1 else "alone"),
        runs=runs,
        listeners=listeners,
    )
