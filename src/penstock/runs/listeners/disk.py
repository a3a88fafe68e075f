"""Listens to the machine's disks, as iostat does: bytes, requests, latency."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from penstock.runs.listeners.contract import Listener, Sample, Tick, Values

_SECTOR_BYTES = 512
_NO_DISKS = ("loop", "ram", "zram")


class _Figures(NamedTuple):
    reads: int
    read_s: float
    writes: int
    write_s: float


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
        self._before: dict[str, _Figures] = {}

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
            now = _Figures(figures[0], figures[3] / 1000, figures[4], figures[7] / 1000)
            disk = f"disk.{name}"
            counters[f"{disk}.reads"] = now.reads
            counters[f"{disk}.read_bytes"] = figures[2] * _SECTOR_BYTES
            counters[f"{disk}.writes"] = now.writes
            counters[f"{disk}.write_bytes"] = figures[6] * _SECTOR_BYTES
            counters[f"{disk}.busy_s"] = figures[9] / 1000
            if len(figures) > 15:  # Linux 5.5 and later
                counters[f"{disk}.flushes"] = figures[15]
            before, self._before[name] = self._before.get(name, now), now
            if reads := now.reads - before.reads:
                gauges[f"{disk}.read_latency_s"] = (now.read_s - before.read_s) / reads
            if writes := now.writes - before.writes:
                gauges[f"{disk}.write_latency_s"] = (now.write_s - before.write_s) / writes
        return Sample(Values(counters, gauges))
