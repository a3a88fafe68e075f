"""Listens to the machine: CPU time, memory, the cores that may be used, and disks."""

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


_SECTOR_BYTES = 512
_NO_DISKS = ("loop", "ram", "zram")


class DiskListener(Listener):
    """What each disk has done; one that was never used is left out, and so are parts of disks.

    Args:
        diskstats: The kernel's figures (Documentation/admin-guide/iostats.rst).
        disks: Folder with an entry for each whole disk.
    """

    name = "disk"

    def __init__(self, diskstats: Path = Path("/proc/diskstats"), disks: Path = Path("/sys/block")) -> None:
        self._diskstats = diskstats
        self._disks = disks
        self._before: dict[str, list[int]] = {}

    def unavailable(self) -> str | None:
        try:
            self._diskstats.read_bytes()
        except OSError as error:
            return f"{self._diskstats} cannot be read ({error.strerror}): this system tells nothing of its disks"
        return None

    def sample(self, tick: Tick) -> Sample:
        counters: dict[str, float] = {}
        gauges: dict[str, float] = {}
        for line in self._diskstats.read_text().splitlines():
            _, _, name, *texts = line.split()
            figures = list(map(int, texts))
            if name.startswith(_NO_DISKS) or not (figures[0] or figures[4]) or not (self._disks / name).exists():
                continue
            before, self._before[name] = self._before.get(name, figures), figures
            disk = f"disk.{name}"
            for kind, at in (("read", 0), ("write", 4)):
                counters[f"{disk}.{kind}s"] = figures[at]
                counters[f"{disk}.{kind}_bytes"] = figures[at + 2] * _SECTOR_BYTES
                if done := figures[at] - before[at]:
                    gauges[f"{disk}.{kind}_latency_s"] = (figures[at + 3] - before[at + 3]) / 1000 / done
            counters[f"{disk}.busy_s"] = figures[9] / 1000
            if len(figures) > 15:  # Linux 5.5 and later
                counters[f"{disk}.flushes"] = figures[15]
        return Sample(Values(counters, gauges))
