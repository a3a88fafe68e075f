"""How often the kernel ended a process for want of memory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_COUNTERS = {"": ("", "memory.events"), "memory": ("memory", "memory.oom_control")}
"""Folder and file of the count, by the controller in ``/proc/self/cgroup``, which is empty for cgroups v2."""


def oom_kills(cgroups: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int:
    """Count the processes that the kernel's OOM killer ended in this process's cgroups, and in those above them.

    Args:
        cgroups: Where cgroups are mounted.
        membership: The kernel's list of this process's cgroups.
    """
    total = 0
    for line in membership.read_text().splitlines() if membership.exists() else ():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            if controller in _COUNTERS:
                folder, name = _COUNTERS[controller]
                group = Path(path.lstrip("/"))
                total += sum(_count(cgroups / folder / each / name) for each in (group, *group.parents))
    return total


def _count(file: Path) -> int:
    with suppress(OSError, ValueError):  # a cgroup above a container's is not seen in it
        for line in file.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
