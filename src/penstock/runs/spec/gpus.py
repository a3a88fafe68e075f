"""The GPUs that specs and command lines may ask for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property

import msgspec

from penstock.errors import BadSetting, GpuMissing
from penstock.gpus.nvml import Gpu, visible_gpus
from penstock.runs.command_line import check_mode
from penstock.runs.modes.mode import check
from penstock.runs.plan import GroupPlan
from penstock.runs.profilers import check_profilers

_LISTENERS = ("gpu", "gpm", "dcgm")
"""Listeners that only a GPU has anything to say to."""


class Gpus:
    """The GPUs of ``penstock run``: those that it sees, or none where it is told to do without.

    Args:
        without: Whether all that needs a GPU is left out (``--no-gpu``).
        mig_changes: Whether mode mig may make instances, and take them back (``--allow-mig-changes``).
    """

    def __init__(self, *, without: bool = False, mig_changes: bool = False) -> None:
        self._without = without
        self._mig_changes = mig_changes
        self._asked: dict[str, None] = {}

    @property
    def left_out(self) -> list[str]:
        """A sentence on what was asked for and is left out, if anything is."""
        return [f"--no-gpu leaves out {', '.join(self._asked)}"] if self._asked else []

    def devices(self, what: str, names: Sequence[str]) -> tuple[str, ...]:
        """Return the UUIDs of GPUs.

        Args:
            what: Where they are asked for; the error's first words.
            names: Their numbers, which count inside CUDA_VISIBLE_DEVICES, or their UUIDs or beginnings of these.

        Raises:
            BadSetting: there is no such GPU, or it is named twice.
        """
        if names and self._without:
            self._asked["devices"] = None
            return ()
        found: list[str] = []
        for name in names:
            there = self._seen(what)
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
        """Check that profilers are there; those that only look at GPUs are left out where these are.

        Raises:
            BadSetting: there is no such profiler; the message begins with ``what``.
        """
        dropped = [text for text in texts if self._without and text.split()[:1] != ["torch"]]
        self._asked |= dict.fromkeys(f"profiler {text}" for text in dropped)
        return check_profilers(what, [text for text in texts if text not in dropped])

    def admit(self, what: str, group: GroupPlan) -> GroupPlan:
        """Check that a group can run in its mode here; return it, without what is left out.

        Args:
            what: Where the mode is asked for; the error's first words.

        Raises:
            BadSetting: it cannot, or there is no such mode.
        """
        check_mode(what, group.mode)
        needs_gpu = group.mode not in ("alone", "plain")
        if not self._without:
            if self._mig_changes:
                runs = tuple(msgspec.structs.replace(run, mig_changes=True) for run in group.runs)
                group = msgspec.structs.replace(group, runs=runs)
            if needs_gpu:
                check(what, group.mode, group.runs, self._seen(what))
            return group
        dropped = [name for name in group.listeners or () if name in _LISTENERS]
        kept = group.listeners and tuple(name for name in group.listeners if name not in dropped)
        self._asked |= dict.fromkeys(f"listener {name}" for name in dropped)
        if needs_gpu:
            self._asked[f"mode {group.mode} (plain instead)"] = None
        return msgspec.structs.replace(group, mode="plain" if needs_gpu else group.mode, listeners=kept)

    def _seen(self, what: str) -> list[Gpu]:
        try:
            if self._visible:
                return self._visible
            why = (
                "CUDA_VISIBLE_DEVICES shows no GPU" if "CUDA_VISIBLE_DEVICES" in os.environ else "there is no GPU"
            )
        except GpuMissing as error:
            why = str(error)
        raise BadSetting(f"{what}: {why}; with --no-gpu, what needs a GPU is left out")

    @cached_property
    def _visible(self) -> list[Gpu]:
        return visible_gpus(os.environ)
