"""Listens to the machine and its disks, and to the processes of each run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.linux.cgroups import MEMBERSHIP, MOUNTED, cores
from penstock.linux.process import pss_bytes
from penstock.runs.listeners.contract import Listener, Sample, Tick, Values


class HostListener(Listener):
    """What all processes of the machine use, and what is left."""

    name = "host"

    def __init__(
        self,
        meminfo: Path = Path("/proc/meminfo"),
        cgroups: Path = MOUNTED,  # where cgroups are mounted
        membership: Path = MEMBERSHIP,  # the kernel's list of this process's cgroups
    ) -> None:
        self._meminfo = meminfo  # the kernel's figures of memory
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
    """What each disk has done; one that was never used is left out, and so are parts of disks."""

    name = "disk"

    def __init__(self, diskstats: Path = Path("/proc/diskstats"), disks: Path = Path("/sys/block")) -> None:
        self._diskstats = diskstats  # the kernel's figures (Documentation/admin-guide/iostats.rst)
        self._disks = disks  # folder with an entry for each whole disk
        self._before: dict[str, list[int]] = {}

    def unavailable(self) -> str | None:
        try:
            self._diskstats.read_bytes()
        except OSError as error:
            return f"{self._diskstats} cannot be read ({error.strerror}): this system reports nothing of its disks"
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


PSS_SHARE = 0.003
_PSS_TICK_S = 0.05


class ProcListener(Listener):
    """What the process tree of each run uses.

    PSS counts a page that n processes map as 1/n. It is dear: the kernel walks through all pages of a process.
    So it is read for one run after another, with at most ``pss_share`` of a core.
    """

    name = "proc"

    def __init__(self, pss_share: float = PSS_SHARE, cpu_clock: Callable[[], float] = time.thread_time) -> None:
        self._pss_share = pss_share  # that part of a core
        self._cpu_clock = cpu_clock  # CPU time of this thread, in seconds
        self._next_pss_s = 0.0
        self._pss_read_s: dict[str, float] = {}
        self._scan = _PssScan("", [])

    def sample(self, tick: Tick) -> Sample:
        runs: dict[str, Values] = {}
        pss = self._pss(tick)
        for run in tick.runs:
            tree = tick.trees[run.id]
            counters = {
                "proc.cpu_s": tree.cpu_s,
                "proc.read_bytes": tree.read_bytes,
                "proc.write_bytes": tree.write_bytes,
            }
            if tree.ready_s is not None:
                counters |= {"proc.ready_s": tree.ready_s, "proc.delayed_s": tree.delayed_s}
            gauges = {
                "proc.rss_bytes": tree.rss_bytes,
                "proc.threads": tree.threads,
                "proc.processes": len(tree.pids),
            }
            runs[run.id] = Values(counters, {**gauges, **pss.get(run.id, {})})
        return Sample(runs=runs)

    def _pss(self, tick: Tick) -> dict[str, dict[str, float]]:
        """Read the PSS of the run whose last reading is the oldest, if the time for that has come."""
        self._pss_read_s = {run.id: self._pss_read_s.get(run.id, 0.0) for run in tick.runs}
        if not tick.runs or tick.time_s < self._next_pss_s:
            return {}
        reading = self._scan
        if reading.id not in tick.trees or not reading.left:
            id = min(self._pss_read_s, key=self._pss_read_s.__getitem__)
            reading = self._scan = _PssScan(id, list(tick.trees[id].pids))
        began_s = self._cpu_clock()
        while reading.left and self._cpu_clock() - began_s < _PSS_TICK_S:
            reading.pss_bytes += pss_bytes(reading.left.pop())
        reading.cpu_s += self._cpu_clock() - began_s
        if reading.left:
            return {}
        self._next_pss_s = tick.time_s + reading.cpu_s / self._pss_share
        before_s, self._pss_read_s[reading.id] = self._pss_read_s[reading.id], tick.time_s
        if not reading.pss_bytes:
            return {}
        gauges = {"proc.pss_bytes": float(reading.pss_bytes)}
        if before_s:
            gauges["proc.pss_per_s"] = 1 / (tick.time_s - before_s)
        return {reading.id: gauges}


class _PssScan(msgspec.Struct):
    """A run whose PSS is being read, and its processes that are left; much memory takes several ticks."""

    id: str
    left: list[int]
    pss_bytes: int = 0
    cpu_s: float = 0.0
