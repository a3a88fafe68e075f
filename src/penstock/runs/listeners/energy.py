"""Listens to the energy counters of processor packages (RAPL) and GPUs (NVML), and estimates each run's part."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import GpuMissing
from penstock.gpus.nvml import answer_of, devices, gpu_processes, nvml, users_hidden
from penstock.runs.listeners.contract import FeedPart, Sample, Tick, Values

POWERCAP = Path("/sys/class/powercap")
CARBON_INTENSITY = "PENSTOCK_CARBON_INTENSITY"
"""Variable that states how many grams of CO2 a kilowatt-hour costs."""
_J_PER_KWH = 3.6e6


class EnergyListener:
    """Energy of processors, their memory and GPUs as measured, and of each run as an estimate.

    In each second, a run gets its part of the machine's CPU time, with that of its part of a feed's, as its part
    of the processors' energy. A GPU's energy is divided evenly among the runs that NVML lists there. So idle power
    is shared out too, and no instruction or kernel counts as dearer than another.
    """

    name = "energy"

    def __init__(self, powercap: Path = POWERCAP, environment: Mapping[str, str] = os.environ) -> None:
        self._powercap = powercap  # folder with the kernel's power zones
        self._environment = environment  # variables that name the GPUs in sight and the carbon intensity
        intensity = environment.get(CARBON_INTENSITY)
        self._g_per_kwh = float(intensity) if intensity else None
        self._zones = rapl_zones(powercap)
        self._gpus: list[GpuCounter] = []
        self._host_cpu_s: float | None = None
        self._cpu_s: dict[str, float] = {}
        self._cpu_j: dict[str, float] = {}
        self._gpu_j: dict[str, float] = {}

    def unavailable(self) -> str | None:
        if no_rapl := rapl_missing(self._powercap):
            self._zones = []
        try:
            counters = [GpuCounter(device) for _, device in devices(self._environment)]
            self._gpus = [counter for counter in counters if counter.read_j() is not None]
            no_gpu = None if self._gpus else "no GPU in sight counts its energy (Volta and later do)"
        except GpuMissing as missing:
            no_gpu = str(missing)
        return f"{': '.join(filter(None, no_rapl))}; {no_gpu}" if no_rapl and no_gpu else None

    def sample(self, tick: Tick) -> Sample:
        self._cpu_j = {run.id: self._cpu_j.get(run.id, 0.0) for run in tick.runs} if self._zones else {}
        self._gpu_j = {run.id: self._gpu_j[run.id] for run in tick.runs if run.id in self._gpu_j}
        why = self._share_out_gpus(tick)
        notes = (f"which run uses which GPU is not known: {why}",) if why else ()
        self._share_out_processors(tick)
        host = {f"energy.{zone.name}_j": zone.total_j for zone in self._zones}
        for place, gpu in enumerate(self._gpus):
            host[f"energy.gpu{place}_j"] = gpu.total_j
        runs = {run.id: Values(self._estimates(run.id)) for run in tick.runs}
        return Sample(Values(host), {id: its for id, its in runs.items() if its.counters}, notes)

    def close(self) -> None:
        self._gpus = []

    def _share_out_processors(self, tick: Tick) -> None:
        used_j = sum(zone.read_j() for zone in self._zones)
        host_cpu_s = tick.host_cpu_s - self._host_cpu_s if self._host_cpu_s is not None else 0.0
        all_s = {id: tree.cpu_s + tick.feeds.get(id, FeedPart()).cpu_s for id, tree in tick.trees.items()}
        for id in self._cpu_j:
            grown_s = all_s[id] - self._cpu_s.get(id, all_s[id])
            self._cpu_j[id] += min(1.0, grown_s / host_cpu_s) * used_j if host_cpu_s > 0 else 0.0
        self._host_cpu_s, self._cpu_s = tick.host_cpu_s, all_s

    def _share_out_gpus(self, tick: Tick) -> str:
        """Share out the GPUs' energy; return why it is not known who uses them, empty if it is."""
        used_j = [gpu.read_j() or 0.0 for gpu in self._gpus]
        pids = [gpu_processes(gpu.device).keys() for gpu in self._gpus]
        if any(pids) and (why := users_hidden()):
            return why
        for gpu_j, its in zip(used_j, pids, strict=True):
            runs = [run.id for run in tick.runs if not its.isdisjoint(tick.trees[run.id].pids)]
            for id in runs:
                its_j = gpu_j / len(runs) if id in self._cpu_s else 0.0  # it began after the last tick
                self._gpu_j[id] = self._gpu_j.get(id, 0.0) + its_j
        return ""

    def _estimates(self, id: str) -> dict[str, float]:
        """Return a run's parts that are known, and their sum."""
        kinds = (("cpu", self._cpu_j), ("gpu", self._gpu_j))
        parts = {f"energy.estimated_{kind}_j": its[id] for kind, its in kinds if id in its}
        if not parts:
            return {}
        found = {**parts, "energy.estimated_j": sum(parts.values())}
        if self._g_per_kwh is not None:
            found["energy.estimated_gco2"] = found["energy.estimated_j"] / _J_PER_KWH * self._g_per_kwh
        return found


def rapl_missing(powercap: Path = POWERCAP) -> tuple[str, str] | None:
    """Return why the processor's energy cannot be read here, and what helps, if anything; None if it can."""
    zones = rapl_zones(powercap)
    if not zones:
        return f"{powercap} shows no energy counters (RAPL): a virtual machine, or a processor without", ""
    for zone in zones:
        try:
            zone.read_j()
        except PermissionError:
            why = f"{zone.counter} may not be read by this user; root permits it until the machine's next start"
            return why, f"chmod a+r {powercap}/intel-rapl:*/energy_uj"
    return None


class GpuCounter:
    """The energy counter of a GPU, which begins anew with its driver."""

    def __init__(self, device: Any) -> None:
        self.device = device  # NVML's handle
        self._before_mj: int | None = None
        self.total_j = 0.0  # joules from the first reading to the last

    def read_j(self) -> float | None:
        """Read it; return the joules since the last reading, None if it cannot be read."""
        now_mj = answer_of(nvml().nvmlDeviceGetTotalEnergyConsumption, self.device)
        if now_mj is None:
            return None
        grown_j = max(0, now_mj - (now_mj if self._before_mj is None else self._before_mj)) / 1000
        self._before_mj = now_mj
        self.total_j += grown_j
        return grown_j


class Zone:
    """One counter, which begins anew at its range's end."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.counter = folder / "energy_uj"
        self._range_uj = int((folder / "max_energy_range_uj").read_text())
        self._before_uj: int | None = None
        self.total_j = 0.0  # joules from the first reading to the last

    def read_j(self) -> float:
        """Read it; return the joules since the last reading."""
        now_uj = int(self.counter.read_text())
        grown_uj = now_uj - (now_uj if self._before_uj is None else self._before_uj)
        self._before_uj = now_uj
        grown_j = (grown_uj if grown_uj >= 0 else grown_uj + self._range_uj) / 1e6
        self.total_j += grown_j
        return grown_j


def rapl_zones(powercap: Path = POWERCAP) -> list[Zone]:
    """Find packages, "package0", and the memory of each, "dram0"."""
    found: list[Zone] = []
    for package in sorted(powercap.glob("intel-rapl:*")):  # AMD's have this name too
        name = _name(package)
        if not name.startswith("package-"):
            continue
        number = name.removeprefix("package-").replace("-", "_")
        found.append(Zone(f"package{number}", package))
        parts = sorted((powercap / package.name).glob(f"{package.name}:*"))
        found.extend(Zone(f"dram{number}", part) for part in parts if _name(part) == "dram")
    return found


def _name(zone: Path) -> str:
    return (zone / "name").read_text().strip()
