"""Energy as the counters measure it, and each run's estimated part."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.fakes.nvml.by_number import by_number
from tests.fakes.nvml.fake_gpus import FakeGpus
from tests.runs.listeners.test_gpu import tick as gpu_tick

from penstock.runs.listeners.contract import FeedPart, Tick, Tree, Values, WatchedRun
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


def test_a_runs_part_of_a_feed_counts_as_its_cpu_time(powercap: Path):
    listener = EnergyListener(powercap)
    feeds = {"a": FeedPart(cpu_s=1.0), "b": FeedPart(cpu_s=1.0)}
    listener.sample(tick(0.0, a=0.0, b=0.0)._replace(feeds=feeds))
    zone(powercap, "intel-rapl:0", "package-0", 30_000_000)
    later = {"a": FeedPart(cpu_s=3.0), "b": FeedPart(cpu_s=3.0)}
    found = listener.sample(tick(10.0, a=3.0, b=0.0)._replace(feeds=later))
    assert estimates(found.runs) == {"a": pytest.approx(15.0), "b": pytest.approx(6.0)}


def estimates(runs: Mapping[str, Values]) -> dict[str, float]:
    return {id: values.counters["energy.estimated_j"] for id, values in runs.items()}


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
    measured = {"energy.package0_j": 30, "energy.dram0_j": 2.5, "energy.package1_j": 0}
    assert listener.sample(tick(1.0)).host.counters == measured


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
    assert estimates(runs) == {"a": pytest.approx(10), "b": pytest.approx(20), "late": 0}
    assert runs["a"].counters == pytest.approx({"energy.estimated_cpu_j": 10, "energy.estimated_j": 10})
    zone(powercap, "intel-rapl:0", "package-0", 80_000_000)
    runs = listener.sample(tick(104.0, a=8.0, b=22.0)).runs  # a machine that counts no CPU time
    assert estimates(runs)["a"] == pytest.approx(10)


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


class TestEnergyOfGpusAlone(ListenerContract):
    @pytest.fixture(autouse=True)
    def its_gpus(self, fake_gpus: FakeGpus, tmp_path: Path):
        fake_gpus.add(processes=[[os.getpid(), 1]])
        fake_gpus.count_energy(0)
        self.powercap = tmp_path

    def make(self):
        listener = EnergyListener(self.powercap)
        assert listener.unavailable() is None
        return listener


@by_number
def test_a_gpus_energy_is_told_as_measured_and_divided_equally_among_the_runs_on_it(fake_gpus, tmp_path):
    mine, other = os.getpid(), os.getppid()
    fake_gpus.add(processes=[[mine, 1]], energy_mj=5_000_000)
    fake_gpus.add(mps_processes=[[other, None], [mine, 1]], energy_mj=70)
    listener = EnergyListener(tmp_path)
    assert listener.unavailable() is None
    first = listener.sample(gpu_tick(a=(mine,), b=(other,), idle=(1,)))
    assert first.host.counters == {"energy.gpu0_j": 0, "energy.gpu1_j": 0}
    fake_gpus.set(0, energy_mj=5_090_000)
    fake_gpus.set(1, energy_mj=60_070)
    second = listener.sample(gpu_tick(a=(mine,), b=(other,), idle=(1,)))
    assert second.host.counters == {"energy.gpu0_j": 90, "energy.gpu1_j": 60}
    assert estimates(second.runs) == {"a": 120, "b": 30}
    assert second.runs["b"].counters["energy.estimated_gpu_j"] == 30
    late = listener.sample(gpu_tick(a=(mine,), b=(other,), idle=(1,), late=(mine,)))
    assert estimates(late.runs) == {"a": 120, "b": 30, "late": 0}
    fake_gpus.set(0, energy_mj=5_180_000)
    late = listener.sample(gpu_tick(a=(mine,), later=(mine,)))
    assert estimates(late.runs) == {"a": 165, "later": 0}
    fake_gpus.set(0, energy_mj=4)  # the driver was loaded anew
    fake_gpus.refuse("*", 15, 1)
    third = listener.sample(gpu_tick(a=(mine,), b=(other,), idle=(1,)))
    assert third.host.counters == {"energy.gpu0_j": 180, "energy.gpu1_j": 60}


@by_number
def test_a_run_gets_its_parts_of_processors_and_gpus_together(fake_gpus, powercap, monkeypatch):
    fake_gpus.add(processes=[[os.getpid(), 1]])
    monkeypatch.setenv("PENSTOCK_CARBON_INTENSITY", "240")
    listener = EnergyListener(powercap)
    assert listener.unavailable() is None
    runs = (WatchedRun("a", 0, (1, 1), 1),)
    listener.sample(Tick(1e9, runs, {"a": Tree((os.getpid(),), 1.0, 0, 0, 0, 0)}, 10.0))
    zone(powercap, "intel-rapl:0", "package-0", 40_000_000)
    fake_gpus.set(0, energy_mj=1_360_000)
    found = listener.sample(Tick(1e9, runs, {"a": Tree((os.getpid(),), 2.0, 0, 0, 0, 0)}, 14.0)).runs["a"].counters
    told = {"cpu_j": 10, "gpu_j": 360, "j": 370, "gco2": 370 / 3.6e6 * 240}
    assert found == pytest.approx({f"energy.estimated_{name}": value for name, value in told.items()})


@by_number
def test_a_process_that_has_just_ended_takes_no_energy_from_a_run(fake_gpus: FakeGpus, tmp_path: Path):
    fake_gpus.add(processes=[[os.getpid(), 1], [2**22 + 1, 1]])
    listener = EnergyListener(tmp_path)
    assert listener.unavailable() is None
    listener.sample(gpu_tick(a=(os.getpid(),)))
    fake_gpus.set(0, energy_mj=1_090_000)
    second = listener.sample(gpu_tick(a=(os.getpid(),)))
    assert (estimates(second.runs), second.notes) == ({"a": 90}, ())


def test_with_neither_kind_of_counter_both_reasons_are_said(fake_gpus: FakeGpus, tmp_path: Path):
    fake_gpus.add()
    fake_gpus.refuse("nvmlDeviceGetTotalEnergyConsumption", 3)
    why = EnergyListener(tmp_path).unavailable() or ""
    assert "RAPL" in why
    assert "no GPU in sight counts its energy" in why
