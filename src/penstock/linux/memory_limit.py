"""How much memory this process may have."""

from __future__ import annotations

from pathlib import Path

import psutil

_LIMITS = {"": ("", "memory.max"), "memory": ("memory", "memory.limit_in_bytes")}
"""Folder and file of a limit, by the controller that ``/proc/self/cgroup`` names: none in version 2 of cgroups."""


def memory_limit_bytes(
    cgroups: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> int:
    """The machine's memory, or what the cgroups of this process (a container, a batch job) allow of it.

    Args:
        cgroups: Where cgroups are mounted.
        membership: Which ones this process is in, as the kernel tells.
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
    """The limits of a cgroup and of all above it; in a container, some of them cannot be seen."""
    found: list[int] = []
    for group in (path, *path.parents):
        try:
            found.append(int((root / group / name).read_text()))
        except (OSError, ValueError):  # not seen here, or "max"
            continue
    return found
