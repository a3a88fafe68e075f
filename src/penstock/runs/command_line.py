"""What a command line may name: scripts, commands, modes, times."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import BadSetting

_MODE = re.compile(r"alone|plain|mps|mig:\S+")
SPECS = (".yaml", ".yml", ".csv")
"""Suffixes of files that describe runs."""
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


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
    if not _MODE.fullmatch(mode):
        raise BadSetting(
            f"{setting}={mode!r}: there are alone (one after the other), plain (all at once), mps, and mig: with "
            "a profile, such as mig:3g.20gb"
        )


def listeners_from(setting: str, text: str) -> tuple[str, ...]:
    """Read names of listeners, separated by commas; "none" is none of them.

    Raises:
        BadSetting: there is no such listener.
    """
    return check_listeners(
        f"{setting}={text!r}", [name.strip() for name in text.split(",")] if text != "none" else []
    )


def check_listeners(what: str, names: Sequence[str]) -> tuple[str, ...]:
    """Check that there are such listeners; return their names.

    Raises:
        BadSetting: there is no such listener; the message begins with ``what``.
    """
    from penstock.runs.listeners.find import listener_names

    there = listener_names()
    if unknown := [name for name in names if name not in there]:
        raise BadSetting(f"{what}: there is no {unknown[0]!r}; there are {', '.join(there)}, and none")
    return tuple(names)


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
