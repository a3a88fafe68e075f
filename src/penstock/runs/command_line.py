"""Makes groups of runs from the words of a command line."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import BadSetting
from penstock.runs.plan import GroupPlan, RunPlan

MODES = ("alone", "plain")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def plan(
    words: Sequence[str],
    *,
    repeat: int = 1,
    name: str = "",
    group: str = "",
    mode: str = "",
    time_limit_s: float | None = None,
) -> list[GroupPlan]:
    """Make the groups that a command line asks for, which run one after the other.

    Args:
        words: A script or a command, and its arguments.
        repeat: How often it is run.
        name: Name of the run, before the number of the repeat; that of the script or command, if empty.
        group: Name of the group; that of the run, if empty.
        mode: Mode of the group; "alone" for one run and "plain" for several, if empty.
        time_limit_s: Seconds after which each run is ended.

    Raises:
        BadSetting: there is no such script, command or mode.
    """
    check_mode("--mode", mode or MODES[0])
    name = name or Path(words[0]).stem
    directory = os.getcwd()
    runs = tuple(
        RunPlan(
            command=command(words, directory),
            name=f"{name}-{index}" if repeat > 1 else name,
            directory=directory,
            time_limit_s=time_limit_s,
        )
        for index in range(repeat)
    )
    return [GroupPlan(name=group or name, mode=mode or ("plain" if repeat > 1 else "alone"), runs=runs)]


def command(words: Sequence[str], directory: str) -> tuple[str, ...]:
    """Return what is executed for a script or a command with its arguments: this Python for a script.

    Raises:
        BadSetting: it is not there, or cannot be executed.
    """
    first = words[0]
    path = Path(directory, first)
    if first.endswith(".py"):
        if not path.is_file():
            raise BadSetting(f"no script {first!r} in {directory}")
        return (sys.executable, *words)
    if "/" in first:
        if not path.is_file():
            raise BadSetting(f"no command {first!r} in {directory}")
        if not os.access(path, os.X_OK):
            raise BadSetting(
                f"{first!r} is not executable: chmod +x it, or name what runs it, such as: sh {first}"
            )
    elif shutil.which(first) is None:
        here = f"; for the file in {directory}: ./{first}" if path.is_file() else ""
        raise BadSetting(f"no command {first!r} on the PATH{here}")
    return tuple(words)


def check_mode(setting: str, mode: str) -> None:
    """Check that there is such a mode.

    Raises:
        BadSetting: there is none; the message begins with ``setting``.
    """
    if mode not in MODES:
        raise BadSetting(f"{setting}={mode!r}: there are alone (one after the other) and plain (all at once)")


def seconds_from(setting: str, text: str) -> float:
    """Read a time such as ``90``, ``"10m"`` or ``"1h30m"``, in seconds.

    Raises:
        BadSetting: it is no time above 0; the message begins with ``setting``.
    """
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)\s*([smhd]?)\s*", text)
    whole = re.fullmatch(r"\s*(?:[0-9]+(?:\.[0-9]+)?\s*[smhd]\s*)+|\s*[0-9]+(?:\.[0-9]+)?\s*", text)
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts) if whole else 0.0
    if seconds <= 0:
        raise BadSetting(f'{setting}={text!r}: give a time above 0, such as "90s", "10m" or "1h30m"')
    return seconds
