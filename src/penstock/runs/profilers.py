"""Profilers of a run: PyTorch's, over some of its steps, and NVIDIA's, which run its command below them."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import threading
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock import waits
from penstock.basics.terminal import say
from penstock.errors import BadSetting
from penstock.linux.files import written_whole
from penstock.runs.record import RunPlan

_COMMANDS = {
    "nsys": ("nsys", "profile", "--output={}", "--force-overwrite=true"),
    "ncu": ("ncu", "--export={}", "--force-overwrite", "--target-processes=all"),
}
PROFILERS = ("torch", *_COMMANDS)
STEPS = "PENSTOCK_PROFILE_STEPS"
_FIRST_STEPS = "10-20"


def check_profilers(what: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Check that there are such profilers, and return them as they were asked for.

    Each text is a name, and options of that profiler: ``"torch"``, ``"torch 100-110"``, ``"nsys -t cuda"``.
    ``what`` says where they are asked for, and begins the error.
    """
    programs: list[str] = []
    for text in texts:
        try:
            name, *options = shlex.split(text) or [""]
        except ValueError as error:
            raise BadSetting(f"{what}={text!r}: {error}") from None
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
    """Return what is executed for a run: its command, below the profiler that runs it and writes to ``files``."""
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


_WARM_UP = 2


@cache
def begin() -> None:
    """Count batches from now on, and profile the steps that ``PENSTOCK_PROFILE_STEPS`` names."""
    first, _, last = os.environ["PENSTOCK_PROFILE_STEPS"].partition("-")
    window = _Window(int(first), int(last), Path(os.environ["PENSTOCK_RUN_FOLDER"]))
    waits.on_batch = window.batch
    atexit.register(window.end)
    os.register_at_fork(after_in_child=window.leave)


class _Window:
    """Steps that are profiled, from ``first`` to before ``last``; a step begins with its batch.

    ``first`` is 2 or more, as some that warm up precede it. The trace goes into ``folder``.
    """

    def __init__(self, first: int, last: int, folder: Path) -> None:
        self._first, self._last, self._folder = first, last, folder
        self._batches = 0
        self._thread = 0  # the one whose batches count
        self._profiler: Any = None

    def batch(self, _samples: float) -> None:
        """Count a batch; whatever goes wrong is printed once, and the script goes on."""
        self._thread = self._thread or threading.get_ident()
        if threading.get_ident() != self._thread:
            return
        self._batches += 1
        try:
            if self._profiler:
                self._profiler.step()
            elif self._batches == max(1, self._first - _WARM_UP):
                self._start()
        except Exception as error:
            self._stop(f"{type(error).__name__}: {error}")
        if self._batches == self._last:
            self.end()

    def end(self) -> None:
        """End before the script does, with what there is."""
        if waits.on_batch is None:
            return
        try:
            if self._profiler:
                self._profiler.stop()
        except Exception as error:
            self._stop(f"{type(error).__name__}: {error}")
        if self._batches <= self._first:
            self._stop(f"the loop had {self._batches} steps, and step {self._first} was to be the first")
        waits.on_batch = None

    def leave(self) -> None:
        """In a forked child: let go of everything."""
        self._profiler = waits.on_batch = None

    def _start(self) -> None:
        torch: Any = import_module("torch.profiler")
        self._profiler = torch.profile(
            schedule=torch.schedule(
                wait=0, warmup=self._first - self._batches, active=self._last - self._first, repeat=1
            ),
            on_trace_ready=self._save,
        )
        self._profiler.start()

    def _save(self, profiler: Any) -> None:
        path = self._folder / f"torch-{os.getpid()}.json"
        with written_whole(path) as half:
            profiler.export_chrome_trace(str(half))

    def _stop(self, why: str) -> None:
        self._profiler = waits.on_batch = None
        say(f"no profile: {why}")
