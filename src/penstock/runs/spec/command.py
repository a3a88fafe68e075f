"""Commands as people write them, and as they are started."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock.errors import BadSetting
from penstock.runs.plan import RunPlan
from penstock.runs.spec.grid import Grid, combinations, fill
from penstock.runs.spec.names import base_name, unique, varied


def started(what: str, words: Sequence[str], directory: str) -> tuple[str, ...]:
    """Return a command as it is started: a ``.py`` runs under this Python.

    Args:
        what: What has the command; the error's first words.
        words: Program and arguments, as people write them.
        directory: Where it is started.

    Raises:
        BadSetting: there is no such script or program.
    """
    first = words[0]
    path = Path(directory, first)
    if first.endswith(".py"):
        if not path.is_file():
            raise BadSetting(f"{what}: there is no script {path}")
        return (sys.executable, *words)
    if os.sep in first and not (path.is_file() and os.access(path, os.X_OK)):
        raise BadSetting(f"{what}: {path} {'is not executable' if path.exists() else 'is not there'}")
    if os.sep not in first and shutil.which(first) is None:
        raise BadSetting(f"{what}: there is no program {first} in PATH; for a file of yours, write ./{first}")
    return tuple(words)


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
    devices: Sequence[str] = (),
    time_limit_s: float | None = None,
) -> list[RunPlan]:
    """Plan the runs of one command: each combination of its grid, each ``repeats`` times.

    Their names need not be unique: ``named`` makes them so over a whole group.

    Raises:
        BadSetting: the command, its grid or a number of it cannot be; the message begins with ``what``.
    """
    if not command or not command[0]:
        raise BadSetting(f"{what}: the command is empty")
    if repeats < 1:
        raise BadSetting(f"{what}: repeats must be above 0, not {repeats}")
    sets = combinations(what, command, grid or {}, take, seed)
    names = varied(name or base_name(command), sets)
    return [
        RunPlan(
            command=started(what, [fill(word, parameters) for word in command], directory),
            name=f"{name},{label}" if name and label != name else label,
            parameters=parameters,
            devices=tuple(devices),
            directory=directory,
            time_limit_s=time_limit_s,
        )
        for parameters, label in zip(sets, names, strict=True)
        for _ in range(repeats)
    ]


def named(runs: Sequence[RunPlan]) -> tuple[RunPlan, ...]:
    """Give each run of a group a name that no other has."""
    names = unique([run.name for run in runs])
    return tuple(msgspec.structs.replace(run, name=name) for run, name in zip(runs, names, strict=True))
