"""How much memory this process may use."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

from penstock.linux.cgroups import MEMBERSHIP, MOUNTED, cgroup_folders

_FILES = {1: "memory.limit_in_bytes", 2: "memory.max"}


def memory_limit_bytes(cgroups: Path = MOUNTED, membership: Path = MEMBERSHIP) -> int:
    """Return the machine's memory, or what this process's cgroups (a container, a batch job) allow of it.

    Args:
        cgroups: Where cgroups are mounted.
        membership: The kernel's list of this process's cgroups.
    """
    limits = [psutil.virtual_memory().total]
    for cgroup_version, folder in cgroup_folders("memory", cgroups, membership):
        with suppress(OSError, ValueError):  # not seen here, or "max"
            limits.append(int((folder / _FILES[cgroup_version]).read_text()))
    return min(limits)
