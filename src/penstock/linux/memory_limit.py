"""How much memory this process may use."""

from __future__ import annotations

from pathlib import Path

import psutil

_LIMITS = {"": ("", "memory.max"), "memory": ("memory", "memory.limit_in_bytes")}
"""Folder and file of a limit, by the controller in ``/proc/self/cgroup``, which is empty for cgroups v2."""


def memory_limit_bytes(
    cgroups: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> int:
    """Return the machine's memory, or what this process's cgroups (a container, a batch job) allow of it.

    Args:
        cgroups: Where cgroups are mounted.
        membership: The kernel's list of this process's cgroups.
    """
    limits = [psutil.virtual_memory().total]
    for line in membership.read_text().splitlines() if membership.exists() else ():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            if controller in _LIMITS:
                folder, name = _LIMITS[controller]
                limits += _along(cgroups / folder, Path(path.lstrip("/")), name)
    return min(limits)


def _along(root: Path, path: Path, name: str) -> list[int]:
    """Return the limits of a cgroup and of all above it; in a container, some cannot be seen."""
    found: list[int] = []
    for group in (path, *path.parents):
        try:
            found.append(int((root / group / name).read_text()))
        except (OSError, ValueError):  # not seen here, or "max"
            continue
    return found
