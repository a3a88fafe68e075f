"""The runs of one command, their names, and the group that a command line asks for."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from penstock.errors import BadSetting
from penstock.runs.record import GroupPlan, RunPlan
from penstock.runs.spec.checks import Gpus
from penstock.runs.spec.checks import command as executed
from penstock.runs.spec.grid import Grid, check_count, combinations, fill, grid_from
from penstock.runs.words import script_of

_LONGEST_VALUE = 16
_LONGEST = 48


def base_name(command: Sequence[str]) -> str:
    """Return what a run of this command is called when nothing varies: its script's name, or its program's."""
    return PurePath(script_of(command) or command[0]).stem or "run"


def varied(base: str, all_parameters: Sequence[Mapping[str, str]]) -> list[str]:
    """Name runs of one command by those parameters that differ between them: ``lr=0.1,width=8``."""
    differ = [name for name in all_parameters[0] if len({each[name] for each in all_parameters}) > 1]
    if not differ:
        return [base] * len(all_parameters)
    return [",".join(f"{name}={each[name][-_LONGEST_VALUE:]}" for name in differ) for each in all_parameters]


def runs_of(
    what: str,
    command: Sequence[str],
    directory: str,
    *,
    name: str = "",
    grid: Grid | None = None,
    take: int | None = None,
    seed: int = 0,
    repeats: int = 1,
    **common: Any,
) -> list[RunPlan]:
    """Plan the runs of one command: each combination of its grid, each ``repeats`` times.

    Their names need not be unique: ``named`` makes them so over a whole group. ``common`` has the other attributes
    of their ``RunPlan``.
    """
    if not command or not command[0]:
        raise BadSetting(f"{what}: the command is empty")
    if repeats < 1:
        raise BadSetting(f"{what}: repeats must be above 0, not {repeats}")
    sets = combinations(what, command, grid or {}, take, seed)
    check_count(what, len(sets) * repeats)
    names = varied(name or base_name(command), sets)
    runs: list[RunPlan] = []
    for parameters, label in zip(sets, names, strict=True):
        try:
            words = executed([fill(word, parameters) for word in command], directory)
        except BadSetting as error:
            raise BadSetting(f"{what}: {error}") from None
        run = RunPlan(
            command=words,
            name=f"{name},{label}" if name and label != name else label,
            parameters=parameters,
            directory=directory,
            **common,
        )
        runs += [run] * repeats
    return runs


def named(runs: Sequence[RunPlan]) -> tuple[RunPlan, ...]:
    """Give each run of a group a short, printable name that no other has: ``train#0``, ``train#1``."""
    words = ["".join(c if c.isprintable() else "_" for c in run.name) for run in runs]
    short = [word if len(word) <= _LONGEST else f"{word[: _LONGEST - 1]}…" for word in words]
    times, seen = Counter(short), Counter[str]()
    taken, result = {name for name in short if times[name] == 1}, list[RunPlan]()
    for run, name in zip(runs, short, strict=True):
        given = name
        while times[name] > 1 and (given == name or given in taken):
            given = f"{name}#{seen[name]}"
            seen[name] += 1
        taken.add(given)
        result.append(msgspec.structs.replace(run, name=given))
    return tuple(result)


def group_of(
    words: Sequence[str],  # a script or a command, and its arguments
    gpus: Gpus,  # GPUs that it can ask for
    *,
    repeat: int = 1,  # how often each combination is run
    name: str = "",  # name of the runs; that of the script or command, if empty
    group: str = "",  # name of the group; that of the runs, if empty
    mode: str = "",  # mode of the group; "alone" for one run and "plain" for several, if empty
    grid: Sequence[str] = (),  # options such as ``"lr=0.1,0.03"``
    take: int | None = None,  # how many of the grid's combinations are drawn; None for all
    seed: int = 0,  # random seed of that
    listeners: tuple[str, ...] | None = None,  # as ``GroupPlan`` has them
    devices: Sequence[str] = (),  # GPUs that each run sees, by number or UUID; empty for all
    profile: Sequence[str] = (),  # profilers, each with its options
    **common: Any,  # what else each run's ``RunPlan`` has
) -> GroupPlan:
    """Plan the group that a command line asks for."""
    if mode != "mps" and any(common.get(limit) is not None for limit in ("mps_threads", "mps_memory_bytes")):
        raise BadSetting("--mps-threads, --mps-memory: only with --mode mps")
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
