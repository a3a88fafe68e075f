"""The machine's cores: how many this process may use, and how long all were busy."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from penstock.linux.cgroups import MEMBERSHIP, MOUNTED, cgroup_folders

_CLOCK_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def machine_cpu_s() -> float:
    """Return the CPU time that the machine has used since it started: all but idle, waiting and stolen time."""
    with open("/proc/stat", "rb") as file:
        user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) * _CLOCK_TICK_S


def cores(cgroups: Path = MOUNTED, membership: Path = MEMBERSHIP) -> float:
    """Return the cores that this process may run on, or the part of them that its cgroups' quotas allow.

    Args:
        cgroups: Where cgroups are mounted.
        membership: The kernel's list of this process's cgroups.
    """
    limits = [float(len(os.sched_getaffinity(0)))]
    for cgroup_version, folder in cgroup_folders("cpu", cgroups, membership):
        with suppress(OSError, ValueError):  # not seen here, or "max"
            if cgroup_version == 2:
                quota, period = map(int, (folder / "cpu.max").read_text().split())
            else:
                quota = int((folder / "cpu.cfs_quota_us").read_text())
                period = int((folder / "cpu.cfs_period_us").read_text())
            if quota > 0:  # version 1 says -1 for none
                limits.append(quota / period)
    return min(limits)
