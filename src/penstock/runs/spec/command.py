"""The runs of one command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.errors import BadSetting
from penstock.runs.command_line import command as executed
from penstock.runs.plan import RunPlan
from penstock.runs.spec.grid import Grid, check_count, combinations, fill
from penstock.runs.spec.names import base_name, unique, varied


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

    Their names need not be unique: ``named`` makes them so over a whole group. What else a ``RunPlan`` has, they
    have in ``common``.

    Raises:
        BadSetting: the command, its grid or a number of it cannot be; the message begins with ``what``.
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
    """Give each run of a group a name that no other has."""
    names = unique([run.name for run in runs])
    return tuple(msgspec.structs.replace(run, name=name) for run, name in zip(runs, names, strict=True))
