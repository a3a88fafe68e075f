"""Profilers of a run: PyTorch's, over some of its steps, and NVIDIA's, which run its command below them."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import BadSetting
from penstock.runs.plan import RunPlan

_COMMANDS = {
    "nsys": ("nsys", "profile", "--output={}", "--force-overwrite=true"),
    "ncu": ("ncu", "--export={}", "--force-overwrite", "--target-processes=all"),
}
PROFILERS = ("torch", *_COMMANDS)
STEPS = "PENSTOCK_PROFILE_STEPS"
_FIRST_STEPS = "10-20"


def check_profilers(what: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Check that there are such profilers, and return them as they were asked for.

    Args:
        what: Where they are asked for; the error's first words.
        texts: Each a name, and options of that profiler: ``"torch"``, ``"torch 100-110"``, ``"nsys -t cuda"``.

    Raises:
        BadSetting: there is no such profiler, or its program is not on the PATH.
    """
    programs: list[str] = []
    for text in texts:
        name, *options = _words(what, text)
        if name not in PROFILERS:
            raise BadSetting(f"{what}: there is no profiler {name!r}; there are {', '.join(PROFILERS)}")
        if name == "torch":
            steps = re.fullmatch(r"(\d+)-(\d+)", " ".join(options) or _FIRST_STEPS)
            if not steps or not 1 < int(steps[1]) < int(steps[2]):
                raise BadSetting(f"{what}={text!r}: give steps from 2 on, such as torch {_FIRST_STEPS}")
        else:
            programs.append(name)
            if shutil.which(name) is None:
                raise BadSetting(f"{what}: {name} is not on the PATH; install NVIDIA's Nsight, or leave it out")
    if len(programs) > 1:
        raise BadSetting(f"{what}: {' and '.join(programs)}: one of them profiles a run")
    return tuple(texts)


def command_of(plan: RunPlan, files: Path) -> list[str]:
    """Return what is executed for a run: its command, below the profiler that runs it.

    Args:
        plan: The run.
        files: Folder of the run's own files, into which the profiler writes.
    """
    for text in plan.profile:
        name, *options = shlex.split(text)
        if name in _COMMANDS:
            return [word.format(files / name) for word in _COMMANDS[name]] + options + list(plan.command)
    return list(plan.command)


def steps_of(plan: RunPlan) -> str:
    """Return the steps that PyTorch's profiler looks at, such as ``"10-20"``; empty for none."""
    for text in plan.profile:
        name, *options = shlex.split(text)
        if name == "torch":
            return options[0] if options else _FIRST_STEPS
    return ""


def _words(what: str, text: str) -> list[str]:
    try:
        return shlex.split(text) or [""]
    except ValueError as error:
        raise BadSetting(f"{what}={text!r}: {error}") from None
