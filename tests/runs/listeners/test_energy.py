"""Energy as the counters measure it, and each run's estimated part."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.runs.listeners.contract import Tick, Tree, WatchedRun
from penstock.runs.listeners.energy import EnergyListener
from penstock.testing.listener import ListenerContract

RANGE_UJ = 1_000_000_000


def zone(folder: Path, path: str, name: str, energy_uj: int = 0) -> None:
    (folder / path).mkdir(parents=True, exist_ok=True)
    (folder / path / "name").write_text(f"{name}\n")
    (folder / path / "energy_uj").write_text(f"{energy_uj}\n")
    (folder / path / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Two packages, one with memory, in the kernel's two views: nested, and linked side by side."""
    zone(tmp_path, "intel-rapl:0", "package-0")
    zone(tmp_path, "intel-rapl:0/intel-rapl:0:0", "core")
    zone(tmp_path, "intel-rapl:0/intel-rapl:0:1", "dram")
    zone(tmp_path, "intel-rapl:1", "package-1")
    zone(tmp_path, "intel-rapl:2", "psys")
    for path in ("intel-rapl:0:0", "intel-rapl:0:1"):
        (tmp_path / path).symlink_to(Path("intel-rapl:0", path))
    return tmp_path


def tick(host_cpu_s: float, **cpu_s: float) -> Tick:
    runs = tuple(WatchedRun(id, index, (1, 1), 1) for index, id in enumerate(cpu_s))
    return Tick(1e9, runs, {id: Tree((), used_s, 0, 0, 0, 0) for id, used_s in cpu_s.items()}, host_cpu_s)


class TestEnergy(ListenerContract):
    @pytest.fixture(autouse=True)
    def its_powercap(self, powercap: Path):
        self.powercap = powercap

    def make(self):
        return EnergyListener(self.powercap)


def test_packages_and_their_memory_are_told_as_measured(powercap: Path):
    listener = EnergyListener(powercap)
    listener.sample(tick(0.0))
    zone(powercap, "intel-rapl:0", "package-0", 30_000_000)
    zone(powercap, "intel-rapl:0:1", "dram", 2_500_000)
    assert listener.sample(tick(1.0)).host.counters == {
        "energy.package0_j": 30,
        "energy.dram0_j": 2.5,
        "energy.package1_j": 0,
    }


def test_a_counter_that_begins_anew_goes_on(powercap: Path):
    zone(powercap, "intel-rapl:1", "package-1", RANGE_UJ - 4_000_000)
    listener = EnergyListener(powercap)
    listener.sample(tick(0.0))
    zone(powercap, "intel-rapl:1", "package-1", 5_000_000)
    assert listener.sample(tick(1.0)).host.counters["energy.package1_j"] == pytest.approx(9)


def test_a_run_is_given_the_part_that_its_cpu_time_has_in_the_machines(powercap: Path):
    listener = EnergyListener(powercap)
    listener.sample(tick(100.0, a=7.0, b=20.0))
    zone(powercap, "intel-rapl:0", "package-0", 40_000_000)
    runs = listener.sample(tick(104.0, a=8.0, b=22.0, late=50.0)).runs
    assert runs["a"].counters == {"energy.estimated_j": pytest.approx(10)}
    assert runs["b"].counters == {"energy.estimated_j": pytest.approx(20)}
    assert runs["late"].counters == {"energy.estimated_j": 0}
    zone(powercap, "intel-rapl:0", "package-0", 80_000_000)
    runs = listener.sample(tick(104.0, a=8.0, b=22.0)).runs  # a machine that counts no CPU time
    assert runs["a"].counters == {"energy.estimated_j": pytest.approx(10)}


def test_a_machine_without_counters_says_so(tmp_path: Path):
    assert "virtual machine" in (EnergyListener(tmp_path).unavailable() or "")


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can become another user")
def test_what_may_not_be_read_is_named_with_what_permits_it(powercap: Path, monkeypatch):
    powercap.chmod(0o755)
    (powercap / "intel-rapl:0" / "energy_uj").chmod(0o400)
    monkeypatch.chdir(powercap)  # the folders above are root's alone
    os.seteuid(65534)
    try:
        why = EnergyListener(Path()).unavailable()
    finally:
        os.seteuid(0)
    assert why
    assert "intel-rapl:0/energy_uj may not be read" in why
    assert "chmod a+r" in why
