"""What specs and command lines may name: scripts, commands, modes, listeners, times, GPUs."""

from __future__ import annotations

import difflib
import os
import re
import shutil
import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import msgspec

from penstock.errors import BadSetting, GpuMissing
from penstock.gpus.nvml import NvmlGpu, visible_gpus
from penstock.runs.modes.mode import kind_of
from penstock.runs.profilers import check_profilers
from penstock.runs.record import GroupPlan

_MODE = re.compile(r"alone|plain|mps|mig:\S+")
SPECS = (".yaml", ".yml", ".csv")
"""Suffixes of files that describe runs."""


def command(words: Sequence[str], directory: str) -> tuple[str, ...]:
    """Return what is executed for a script or a command with its arguments: this Python for a script."""
    first = words[0]
    path = Path(directory, first)
    if first.endswith(".py"):
        if not path.is_file():
            beside = [each.name for each in path.parent.glob("*.py")] if path.parent.is_dir() else []
            near = difflib.get_close_matches(path.name, beside, 1)
            meant = f"; did you mean {str(Path(first).with_name(near[0]))!r}?" if near else ""
            raise BadSetting(f"no script {first!r} in {directory}{meant}")
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


def listeners_from(setting: str, text: str) -> tuple[str, ...]:
    """Read names of listeners, separated by commas; "none" is none of them."""
    return check_listeners(
        f"{setting}={text!r}", [name.strip() for name in text.split(",")] if text != "none" else []
    )


def check_listeners(what: str, names: Sequence[str]) -> tuple[str, ...]:
    """Check that there are such listeners; return their names."""
    from penstock.runs.listeners.contract import listener_names

    there = listener_names()
    if unknown := [name for name in names if name not in there]:
        raise BadSetting(f"{what}: there is no {unknown[0]!r}; there are {', '.join(there)}, and none")
    return tuple(names)


_LISTENERS = ("gpu", "gpm", "dcgm")
"""Listeners that sample nothing without a GPU."""


class Gpus:
    """The GPUs of ``penstock run``: those it sees, none with ``--no-gpu``, other machines' with ``--on``."""

    def __init__(self, *, without: bool = False, elsewhere: bool = False) -> None:
        self.elsewhere = elsewhere  # whether they are other machines', which nothing here can check
        self._without = without  # whether all that needs a GPU is left out (``--no-gpu``)
        self._asked: dict[str, None] = {}

    @property
    def left_out(self) -> list[str]:
        """A sentence on what was asked for and is left out, if anything is."""
        return [f"--no-gpu leaves out {', '.join(self._asked)}"] if self._asked else []

    def devices(self, what: str, names: Sequence[str]) -> tuple[str, ...]:
        """Return the UUIDs of GPUs.

        The names are numbers, which count inside CUDA_VISIBLE_DEVICES, or UUIDs or beginnings of these. ``what``
        says where they are asked for, and begins the error.
        """
        if names and self._without:
            self._asked["devices"] = None
            return ()
        if names and self.elsewhere:
            raise BadSetting(f"{what}: with --on, --gpus says how many GPUs each job gets, and Ray or Slurm which")
        found: list[str] = []
        for name in names:
            there = self.seen(what)
            fitting = [gpu.uuid for gpu in there if gpu.uuid.lower().startswith(name.lower())]
            if name.isdecimal():
                fitting = [gpu.uuid for gpu in there[int(name) : int(name) + 1]]
            if not name or len(fitting) != 1:
                listed = ", ".join(f"{i} ({gpu.uuid}, {gpu.name})" for i, gpu in enumerate(there))
                why = "several GPUs are" if fitting else "there is no GPU"
                raise BadSetting(f"{what}: {why} {name!r}; there are {listed}")
            if fitting[0] in found:
                raise BadSetting(f"{what}: {name!r} is GPU {fitting[0]}, which is there already")
            found += fitting
        return tuple(found)

    def profilers(self, what: str, texts: Sequence[str]) -> tuple[str, ...]:
        """Check that profilers are there; those that only look at GPUs are left out if GPUs are."""
        dropped = [text for text in texts if self._without and text.split()[:1] != ["torch"]]
        self._asked |= dict.fromkeys(f"profiler {text}" for text in dropped)
        return check_profilers(what, [text for text in texts if text not in dropped])

    def admit(self, what: str, group: GroupPlan) -> GroupPlan:
        """Check that a group can run in its mode here; return it, without what is left out."""
        if not _MODE.fullmatch(group.mode):
            raise BadSetting(
                f"{what}={group.mode!r}: there are alone (one after the other), plain (all at once), mps, and "
                "mig: with a profile, such as mig:3g.20gb"
            )
        needs_gpu = group.mode not in ("alone", "plain")
        if not self._without:
            if needs_gpu and not self.elsewhere:
                kind_of(group.mode).check(what, group.mode, group.runs, self.seen(what))
            return group
        dropped = [name for name in group.listeners or () if name in _LISTENERS]
        remaining = group.listeners and tuple(name for name in group.listeners if name not in dropped)
        self._asked |= dict.fromkeys(f"listener {name}" for name in dropped)
        if needs_gpu:
            self._asked[f"mode {group.mode} (plain instead)"] = None
        return msgspec.structs.replace(group, mode="plain" if needs_gpu else group.mode, listeners=remaining)

    def count(self, number: int | None) -> int | None:
        """Return how many GPUs are asked for: 0 if GPUs are left out."""
        if number and self._without:
            self._asked["gpus"] = None
        return 0 if self._without else number

    def seen(self, what: str) -> list[NvmlGpu]:
        """Return the GPUs that ``penstock run`` sees."""
        try:
            if self._visible:
                return self._visible
            why = (
                "CUDA_VISIBLE_DEVICES shows no GPU" if "CUDA_VISIBLE_DEVICES" in os.environ else "there is no GPU"
            )
        except GpuMissing as error:
            why = str(error)
        raise BadSetting(f"{what}: {why}; penstock run --no-gpu leaves out what needs one")

    @cached_property
    def _visible(self) -> list[NvmlGpu]:
        return visible_gpus(os.environ)
