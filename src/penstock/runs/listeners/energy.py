"""Listens to the processor's own energy counters (RAPL), and estimates each run's part."""

from __future__ import annotations

from pathlib import Path

from penstock.runs.listeners.contract import Sample, Tick, Values


class EnergyListener:
    """Energy of processor packages and their memory as measured, and of each run as an estimate.

    In each second a run gets the part of all measured energy that its CPU time has in the machine's CPU time. So
    the idle power of the machine is shared out too, and no instruction counts as dearer than another.

    Args:
        powercap: Folder with the kernel's power zones.
    """

    name = "energy"

    def __init__(self, powercap: Path = Path("/sys/class/powercap")) -> None:
        self._powercap = powercap
        self._zones = _zones(powercap)
        self._host_cpu_s: float | None = None
        self._cpu_s: dict[str, float] = {}
        self._estimated_j: dict[str, float] = {}

    def unavailable(self) -> str | None:
        if not self._zones:
            return (
                f"{self._powercap} shows no energy counters (RAPL): this is a virtual machine, or its processor "
                "or kernel has none"
            )
        for zone in self._zones:
            try:
                zone.read_j()
            except PermissionError:
                return (
                    f"{zone.counter} may not be read by this user. Root can permit it until the next start of the "
                    f"machine: chmod a+r {self._powercap}/intel-rapl:*/energy_uj"
                )
        return None

    def sample(self, tick: Tick) -> Sample:
        used_j = sum(zone.read_j() for zone in self._zones)
        host_cpu_s = tick.host_cpu_s - self._host_cpu_s if self._host_cpu_s is not None else 0.0
        runs: dict[str, Values] = {}
        for run in tick.runs:
            cpu_s = tick.trees[run.id].cpu_s
            part = min(1.0, (cpu_s - self._cpu_s.get(run.id, cpu_s)) / host_cpu_s) if host_cpu_s > 0 else 0.0
            self._estimated_j[run.id] = self._estimated_j.get(run.id, 0.0) + part * used_j
            runs[run.id] = Values({"energy.estimated_j": self._estimated_j[run.id]})
        self._host_cpu_s = tick.host_cpu_s
        self._cpu_s = {id: tree.cpu_s for id, tree in tick.trees.items()}
        self._estimated_j = {id: self._estimated_j[id] for id in runs}
        return Sample(Values({f"energy.{zone.name}_j": zone.total_j for zone in self._zones}), runs)

    def close(self) -> None:
        pass


class _Zone:
    """One counter, which begins anew at its range's end.

    Attributes:
        total_j: Joules from the first reading to the last.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.counter = folder / "energy_uj"
        self._range_uj = int((folder / "max_energy_range_uj").read_text())
        self._before_uj: int | None = None
        self.total_j = 0.0

    def read_j(self) -> float:
        """Read it; return the joules since the last reading."""
        now_uj = int(self.counter.read_text())
        grown_uj = now_uj - (now_uj if self._before_uj is None else self._before_uj)
        self._before_uj = now_uj
        grown_j = (grown_uj if grown_uj >= 0 else grown_uj + self._range_uj) / 1e6
        self.total_j += grown_j
        return grown_j


def _zones(powercap: Path) -> list[_Zone]:
    """Find packages, "package0", and the memory of each, "dram0"."""
    found: list[_Zone] = []
    for package in sorted(powercap.glob("intel-rapl:*")):  # AMD's have this name too
        name = _name(package)
        if not name.startswith("package-"):
            continue
        number = name.removeprefix("package-").replace("-", "_")
        found.append(_Zone(f"package{number}", package))
        parts = sorted((powercap / package.name).glob(f"{package.name}:*"))
        found.extend(_Zone(f"dram{number}", part) for part in parts if _name(part) == "dram")
    return found


def _name(zone: Path) -> str:
    return (zone / "name").read_text().strip()
