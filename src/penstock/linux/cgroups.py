"""What this process's cgroups (a container, a batch job) allow it: cores and memory; both versions of cgroups.

Imports only Python's own modules: so does a run's keeper.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

MOUNTED = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")  # the kernel's list of this process's cgroups


def cgroup_folders(
    controller: str, cgroups: Path = MOUNTED, membership: Path = MEMBERSHIP
) -> Iterator[tuple[int, Path]]:
    """Yield version (1 or 2) and folder of each cgroup that this process is in, and of all above it.

    They control ``controller``: "memory", "cpu". In a container some of the folders cannot be seen.
    """
    for line in membership.read_text().splitlines() if membership.exists() else ():
        _, controllers, path = line.split(":", 2)
        for each in controllers.split(","):
            if each in ("", controller):  # version 2 has one list for all controllers, without a name
                own = Path(path.lstrip("/"))
                for group in (own, *own.parents):
                    yield (1 if each else 2), cgroups / each / group


_CLOCK_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def machine_cpu_s() -> float:
    """Return the CPU time that the machine has used since it started: all but idle, waiting and stolen time."""
    with open("/proc/stat", "rb") as file:
        return _used_s(file.readline().split())


def _used_s(fields: Sequence[bytes]) -> float:
    """Return the time of a line of ``/proc/stat`` (proc(5)) without what is idle, waits or is stolen."""
    user, nice, system, _, _, irq, softirq = map(int, fields[1:8])
    return (user + nice + system + irq + softirq) * _CLOCK_TICK_S


def cores(cgroups: Path = MOUNTED, membership: Path = MEMBERSHIP) -> float:
    """Return the cores that this process may run on, or the part of them that its cgroups' quotas allow."""
    quotas = [quota for _, _, quota in _quotas(cgroups, membership)]
    return min([float(len(os.sched_getaffinity(0))), *quotas])


def cpu_limits(cgroups: Path = MOUNTED, membership: Path = MEMBERSHIP) -> dict[str, tuple[float, float]]:
    """Return what limits this process: cores, and the CPU seconds used of them by now, by everybody.

    The empty name is that of the CPUs that it may run on; others are folders of cgroups with a quota.
    """
    mine = os.sched_getaffinity(0)
    with open("/proc/stat", "rb") as file:
        lines = [line.split() for line in file if line.startswith(b"cpu") and line[3:4] != b" "]
    used_s = sum(_used_s(fields) for fields in lines if int(fields[0][3:]) in mine)
    limits = {"": (float(len(mine)), used_s)}
    for cgroup_version, folder, quota in _quotas(cgroups, membership):
        with suppress(OSError, ValueError):
            if cgroup_version == 2:
                used_s = int((folder / "cpu.stat").read_text().split()[1]) / 1e6  # after "usage_usec"
            else:
                counted = cgroups / "cpuacct" / folder.relative_to(cgroups / "cpu")
                used_s = int((counted / "cpuacct.usage").read_text()) / 1e9
            limits[str(folder)] = quota, used_s
    return limits


def _quotas(cgroups: Path, membership: Path) -> Iterator[tuple[int, Path, float]]:
    """Yield version, folder and cores of each cgroup with a quota that this process is in."""
    for cgroup_version, folder in cgroup_folders("cpu", cgroups, membership):
        with suppress(OSError, ValueError):  # not seen here, or "max"
            if cgroup_version == 2:
                quota, period = map(int, (folder / "cpu.max").read_text().split())
            else:
                quota = int((folder / "cpu.cfs_quota_us").read_text())
                period = int((folder / "cpu.cfs_period_us").read_text())
            if quota > 0:  # version 1 says -1 for none
                yield cgroup_version, folder, quota / period


_FILES = {1: "memory.limit_in_bytes", 2: "memory.max"}


def memory_limit_bytes(cgroups: Path = MOUNTED, membership: Path = MEMBERSHIP) -> int:
    """Return the machine's memory, or what this process's cgroups (a container, a batch job) allow of it."""
    import psutil

    limits = [psutil.virtual_memory().total]
    for cgroup_version, folder in cgroup_folders("memory", cgroups, membership):
        with suppress(OSError, ValueError):  # not seen here, or "max"
            limits.append(int((folder / _FILES[cgroup_version]).read_text()))
    return min(limits)


_USED = {1: "memory.usage_in_bytes", 2: "memory.current"}


def free_memory_bytes(cgroups: Path = MOUNTED, membership: Path = MEMBERSHIP) -> int:
    """Return the memory that this process may still take: of the machine, and of its cgroups; caches are free."""
    import psutil

    free = [psutil.virtual_memory().available]
    for cgroup_version, folder in cgroup_folders("memory", cgroups, membership):
        with suppress(OSError, ValueError, KeyError):  # not seen here, or "max"
            limit = int((folder / _FILES[cgroup_version]).read_text())
            counted = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            used = int((folder / _USED[cgroup_version]).read_text()) - int(counted["inactive_file"])
            free.append(max(0, limit - used))
    return min(free)


_COUNTERS = {1: "memory.oom_control", 2: "memory.events"}


def oom_kills(cgroups: Path = MOUNTED, membership: Path = MEMBERSHIP) -> int:
    """Count processes that the kernel's OOM killer ended in this process's cgroups, and in those above them."""
    folders = cgroup_folders("memory", cgroups, membership)
    return sum(_count(folder / _COUNTERS[cgroup_version]) for cgroup_version, folder in folders)


def _count(file: Path) -> int:
    with suppress(OSError, ValueError):  # a cgroup above a container's is not seen in it
        for line in file.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
