"""The cgroups of this process (a container, a batch job), of both versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

MOUNTED = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def cgroup_folders(
    controller: str, cgroups: Path = MOUNTED, membership: Path = MEMBERSHIP
) -> Iterator[tuple[int, Path]]:
    """Yield version (1 or 2) and folder of each cgroup that this process is in, and of all above it.

    In a container some of the folders cannot be seen.

    Args:
        controller: What the cgroup controls: "memory", "cpu".
        cgroups: Where cgroups are mounted.
        membership: The kernel's list of this process's cgroups.
    """
    for line in membership.read_text().splitlines() if membership.exists() else ():
        _, controllers, path = line.split(":", 2)
        for each in controllers.split(","):
            if each in ("", controller):  # version 2 has one list for all controllers, without a name
                own = Path(path.lstrip("/"))
                for group in (own, *own.parents):
                    yield (1 if each else 2), cgroups / each / group
