"""Whose processes NVML lists on a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterable

_FOREIGN = (
    "NVML gives processes the numbers of another PID namespace (the host's, in a container), so which run uses "
    "which GPU is not known; share that namespace (docker run --pid=host)"
)


class GpuUsers:
    """Tells whether NVML's process numbers are those of this PID namespace."""

    def __init__(self) -> None:
        self._foreign_ticks = 0

    def are_known(self, pids: Iterable[int]) -> bool:
        """Return whether all these numbers exist here; asked once a tick."""
        known = all(map(_exists, pids))
        self._foreign_ticks = 0 if known else self._foreign_ticks + 1
        return known

    @property
    def notes(self) -> tuple[str, ...]:
        """What to say of it; a process that has just ended is no reason yet."""
        return (_FOREIGN,) if self._foreign_ticks > 1 else ()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
