"""How often the kernel ended a process for want of memory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from penstock.linux.cgroups import MEMBERSHIP, MOUNTED, cgroup_folders

_COUNTERS = {1: "memory.oom_control", 2: "memory.events"}


def oom_kills(cgroups: Path = MOUNTED, membership: Path = MEMBERSHIP) -> int:
    """Count the processes that the kernel's OOM killer ended in this process's cgroups, and in those above them.

    Args:
        cgroups: Where cgroups are mounted.
        membership: The kernel's list of this process's cgroups.
    """
    folders = cgroup_folders("memory", cgroups, membership)
    return sum(_count(folder / _COUNTERS[cgroup_version]) for cgroup_version, folder in folders)


def _count(file: Path) -> int:
    with suppress(OSError, ValueError):  # a cgroup above a container's is not seen in it
        for line in file.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
