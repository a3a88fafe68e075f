"""Listens to the machine: CPU time, memory, and the cores that may be used."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.linux.cgroups import MEMBERSHIP, MOUNTED, cores
from penstock.runs.listeners.contract import Listener, Sample, Tick, Values


class HostListener(Listener):
    """What all processes of the machine use, and what is left.

    Args:
        meminfo: The kernel's figures of memory.
        cgroups: Where cgroups are mounted.
        membership: The kernel's list of this process's cgroups.
    """

    name = "host"

    def __init__(
        self,
        meminfo: Path = Path("/proc/meminfo"),
        cgroups: Path = MOUNTED,
        membership: Path = MEMBERSHIP,
    ) -> None:
        self._meminfo = meminfo
        self._cores = cores(cgroups, membership)

    def sample(self, tick: Tick) -> Sample:
        gauges = {"host.cores": self._cores, "host.cpus": float(os.cpu_count() or 1)}
        with open(self._meminfo, "rb") as file:
            for line in file:
                if line.startswith(b"MemAvailable:"):
                    gauges["host.available_bytes"] = float(int(line.split()[1]) << 10)
                    break
        return Sample(Values({"host.cpu_s": tick.host_cpu_s}, gauges))
