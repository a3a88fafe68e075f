"""Measures what a set of processes costs: CPU time to the last, and memory while they live."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress

import psutil

from penstock.linux.process import adopt_orphans, cpu_s

_END_WITHIN_S = 20.0


def children_cpu_s() -> float:
    """Return the CPU time of the children that this process has waited for, and of those that they have."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Family:
    """The descendants of this process that were started since this was made.

    Inside ``family()`` a descendant whose parent ends becomes this process's
    child, so a feeder that outlives the trainer that started it is accounted
    for to its end.
    """

    def __init__(self) -> None:
        self._self = psutil.Process()
        self._others = {child.pid for child in self._self.children(recursive=True)}
        self._before_s = children_cpu_s()

    def cpu_s(self) -> float:
        """Return the CPU time of all of them until now."""
        return children_cpu_s() - self._before_s + cpu_s(self._living())

    def terminate(self) -> None:
        """Ask all of them to end."""
        for process in self._living():
            with suppress(psutil.Error):
                process.terminate()

    def end(self) -> None:
        """Wait until none of them is left; what does not end by itself is killed."""
        deadline = time.monotonic() + _END_WITHIN_S
        while living := self._living():
            for process in self._self.children():
                if process.pid not in self._others:
                    with suppress(ChildProcessError):
                        os.waitpid(process.pid, os.WNOHANG)
            if time.monotonic() >= deadline:
                for process in living:
                    with suppress(psutil.Error):
                        process.kill()
            time.sleep(0.02)

    def _living(self) -> list[psutil.Process]:
        return [process for process in self._self.children(recursive=True) if process.pid not in self._others]


@contextmanager
def family() -> Generator[Family]:
    """Account for the processes that are started inside; at its end none is left."""
    before = adopt_orphans()
    members = Family()
    try:
        yield members
    except BaseException:
        members.terminate()
        raise
    finally:
        members.end()
        adopt_orphans(adopt=before)
