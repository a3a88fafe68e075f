"""Has PyTorch's profiler look at some steps of a loop over batches, and keeps what it saw as a Chrome trace."""

from __future__ import annotations

import atexit
import os
import threading
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock import waits
from penstock.basics.terminal import say
from penstock.linux.files import written_whole

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
    """Steps that are profiled; a step begins with its batch.

    Args:
        first: The first of them, from 2: it is preceded by some that warm up.
        last: The step before which it ends.
        folder: Where the trace goes.
    """

    def __init__(self, first: int, last: int, folder: Path) -> None:
        self._first, self._last, self._folder = first, last, folder
        self._batches = 0
        self._thread = 0  # the one whose batches count
        self._profiler: Any = None

    def batch(self) -> None:
        """Count a batch; whatever goes wrong is told once, and the script goes on."""
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
            on_trace_ready=self._keep,
        )
        self._profiler.start()

    def _keep(self, profiler: Any) -> None:
        path = self._folder / f"torch-{os.getpid()}.json"
        with written_whole(path) as half:
            profiler.export_chrome_trace(str(half))

    def _stop(self, why: str) -> None:
        self._profiler = waits.on_batch = None
        say(f"no profile: {why}")
