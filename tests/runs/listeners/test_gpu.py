"""GPUs as NVML tells them, over a library made for the test."""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from tests.fakes.nvml.by_number import by_number
from tests.fakes.nvml.fake_gpus import FakeGpus

from penstock.gpus.nvml import nvml
from penstock.runs.listeners.contract import Tick, Tree, WatchedRun
from penstock.runs.listeners.gpu import GpmListener, GpuListener
from penstock.testing.listener import ListenerContract

MINE, OTHER, NOBODY = os.getpid(), os.getppid(), 2**22 + 1
GPM = {"2": 81.0, "3": 40.0, "5": 33.0, "10": 20.0, "20": 2.0, "21": 100.0}


def tick(**pids: tuple[int, ...]) -> Tick:
    runs = tuple(WatchedRun(id, index, (1, 1), 1) for index, id in enumerate(pids))
    return Tick(1e9, runs, {id: Tree(its, 0.0, 0, 0, 0, 0) for id, its in pids.items()}, 0.0)


def listening(kind: Any, environment: Mapping[str, str] | None = None) -> Any:
    listener = kind(environment or {})
    assert listener.unavailable() is None
    return listener


class TestGpu(ListenerContract):
    @pytest.fixture(autouse=True, params=[GpuListener, GpmListener])
    def its_gpus(self, fake_gpus: FakeGpus, request: pytest.FixtureRequest) -> None:
        self.kind = request.param
        fake_gpus.add(gpm=GPM, processes=[[MINE, 1 << 20]])
        fake_gpus.add_mig(0, "1g.10gb")
        fake_gpus.add(gpm=GPM)

    def make(self) -> Any:
        return listening(self.kind)


def test_a_gpu_is_told_as_nvml_measures_it(fake_gpus: FakeGpus) -> None:
    fake_gpus.add()
    fake_gpus.add(utilisation=97, used_bytes=5 << 30, power_mw=412_500, temperature_c=71, reasons=0x24)
    gauges = listening(GpuListener, {"CUDA_VISIBLE_DEVICES": "1"}).sample(tick()).host.gauges
    told = {"utilisation_percent": 97, "memory_bytes": 5 << 30, "power_w": 412.5, "sm_mhz": 1700}
    told |= {"memory_mhz": 2600, "temperature_c": 71}
    told |= {"throttled_power": 1, "throttled_heat": 1, "throttled_hardware": 0}
    assert gauges == {f"gpu.0.{name}": value for name, value in told.items()}


def test_what_nvml_does_not_tell_is_absent_and_zero_is_told(fake_gpus: FakeGpus) -> None:
    fake_gpus.add(utilisation=0)
    fake_gpus.refuse("nvmlDeviceGetPowerUsage", 3, 0)
    fake_gpus.refuse("nvmlDeviceGetCurrentClocksEventReasons", 13)
    gauges = listening(GpuListener).sample(tick()).host.gauges
    assert gauges["gpu.0.utilisation_percent"] == 0
    assert "gpu.0.power_w" not in gauges
    assert not [name for name in gauges if "throttled" in name]


@by_number
def test_a_gpu_that_is_lost_takes_no_other_with_it(fake_gpus: FakeGpus) -> None:
    fake_gpus.add(gpm=GPM)
    fake_gpus.add(gpm=GPM, processes=[[MINE, 7]])
    gpu, gpm = listening(GpuListener), listening(GpmListener)
    gpm.sample(tick())
    fake_gpus.refuse("*", nvml().NVML_ERROR_GPU_IS_LOST, 0)
    sample = gpu.sample(tick(a=(MINE,)))
    assert {name.split(".")[1] for name in sample.host.gauges} == {"1"}
    assert sample.runs["a"].gauges == {"gpu.memory_bytes": 7}
    assert {name.split(".")[1] for name in gpm.sample(tick()).host.gauges} == {"1"}
    gpm.close()


@by_number
def test_a_runs_memory_is_that_of_its_processes_on_all_gpus(fake_gpus: FakeGpus) -> None:
    fake_gpus.add(processes=[[MINE, 5], [OTHER, 100]])
    fake_gpus.add(mps_processes=[[MINE, 2]])
    runs = listening(GpuListener).sample(tick(a=(MINE, 1), b=(OTHER,), idle=(1,))).runs
    assert {id: values.gauges["gpu.memory_bytes"] for id, values in runs.items()} == {"a": 7, "b": 100}


@by_number
@pytest.mark.parametrize(
    ("processes", "told"),
    [([[MINE, None], [OTHER, 100]], {"b": 100}), ([[MINE, 5], [NOBODY, 100]], {"a": 5})],
    ids=["NVML does not give its memory: none rather than zero", "one that has just ended hides no other"],
)
def test_what_is_not_known_of_one_process_is_left_out(fake_gpus: FakeGpus, processes, told) -> None:
    fake_gpus.add(processes=processes)
    sample = listening(GpuListener).sample(tick(a=(MINE,), b=(OTHER,)))
    assert {id: values.gauges["gpu.memory_bytes"] for id, values in sample.runs.items()} == told
    assert sample.notes == ()


IN_A_CONTAINER = """
import sys
from pathlib import Path
from penstock.runs.listeners.contract import Tick, Tree, WatchedRun
from penstock.runs.listeners.energy import EnergyListener
from penstock.runs.listeners.gpu import GpuListener
runs = (WatchedRun("a", 0, (1, 1), 1),)
for listener in (GpuListener({}), EnergyListener(Path("/nowhere"), {})):
    assert listener.unavailable() is None
    for _ in range(2):
        sample = listener.sample(Tick(1e9, runs, {"a": Tree((1,), 0.0, 0, 0, 0, 0)}, 0.0))
    print(len(sample.runs), len(sample.host.gauges | sample.host.counters) > 0, *sample.notes)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="makes a namespace of processes, as root")
@pytest.mark.parametrize("used", [True, False])
def test_in_a_container_no_number_is_taken_for_a_runs_and_that_is_said(fake_gpus: FakeGpus, used: bool) -> None:
    fake_gpus.add(processes=[[1, 5]] if used else [])  # there, each process has a number that is another's here
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", IN_A_CONTAINER]
    environment = {**os.environ, **fake_gpus.environment}
    lines = subprocess.check_output(command, env=environment, text=True).splitlines()
    assert [line.startswith("0 True") for line in lines] == [True, True]
    assert [line.count("is not known") + line.count("--pid=host") for line in lines] == 2 * [2 if used else 0]


@by_number
def test_instances_are_told_beside_their_gpu_as_they_come_and_go(fake_gpus: FakeGpus) -> None:
    fake_gpus.add(gpm=GPM)
    gpu, gpm = listening(GpuListener), listening(GpmListener)
    fake_gpus.add_mig(0, "1g.10gb")
    fake_gpus.add_mig(0, "2g.20gb")
    fake_gpus.set(0, processes=[[MINE, 9, 2]])
    sample = gpu.sample(tick(a=(MINE,)))
    assert sample.runs["a"].gauges == {"gpu.memory_bytes": 9}
    assert sample.host.gauges["gpu.0.power_w"] == 300
    assert "gpu.0.utilisation_percent" not in sample.host.gauges, "NVML tells it of no GPU in MIG mode"
    assert {"gpu.0.mig1.memory_bytes", "gpu.0.mig2.memory_bytes"} <= set(sample.host.gauges)
    gpm.sample(tick())
    assert gpm.sample(tick()).host.gauges["gpm.0.mig2.sm_active_percent"] == 81
    fake_gpus.set(0, mig=[0, 0], instances=[])
    gpm.sample(tick())
    assert "gpm.0.sm_active_percent" in gpm.sample(tick()).host.gauges
    gpm.close()
    assert not importlib.import_module("pynvml").samples


def test_gpm_tells_of_the_time_since_the_last_tick(fake_gpus: FakeGpus) -> None:
    fake_gpus.add(gpm=GPM)
    listener = listening(GpmListener)
    assert not listener.sample(tick()).host.gauges
    told = {"sm_active_percent": 81, "sm_occupancy_percent": 40, "tensor_percent": 33, "dram_percent": 20}
    told |= {"pcie_tx_bytes_per_s": 2 << 20, "pcie_rx_bytes_per_s": 100 << 20}
    assert listener.sample(tick()).host.gauges == {f"gpm.0.{name}": value for name, value in told.items()}
    listener.close()
    assert not importlib.import_module("pynvml").samples


def test_what_cannot_be_told_is_left_out_of_gpm_and_the_rest_goes_on(fake_gpus: FakeGpus) -> None:
    fake_gpus.add(gpm=None, name="NVIDIA A100")
    fake_gpus.add(gpm={"2": 50.0, "3": math.nan})  # as an H100 says of too short a time
    listener = listening(GpmListener)
    listener.sample(tick())
    assert listener.sample(tick()).host.gauges == {"gpm.1.sm_active_percent": 50}
    fake_gpus.refuse("nvmlGpmSampleGet", 3, 1)
    assert not listener.sample(tick()).host.gauges
    fake_gpus.refuse("nvmlGpmSampleGet", None, 1)
    assert not listener.sample(tick()).host.gauges, "it begins anew"
    assert listener.sample(tick()).host.gauges
    listener.close()


def test_without_gpus_or_gpm_that_is_the_reason(fake_gpus: FakeGpus) -> None:
    assert GpuListener({}).unavailable() == GpmListener({}).unavailable() == "NVML finds no GPU"
    fake_gpus.add(gpm=None)
    assert "begins with Hopper" in (GpmListener({}).unavailable() or "")
    why = GpuListener({"CUDA_VISIBLE_DEVICES": ""}).unavailable()
    assert "CUDA_VISIBLE_DEVICES='' shows no GPU" in (why or "")


def test_a_tick_costs_few_calls_of_nvml(fake_gpus: FakeGpus) -> None:
    fake_gpus.add(gpm=GPM, processes=[[MINE, 1]])
    calls = importlib.import_module("pynvml").calls
    gpu, gpm = listening(GpuListener), listening(GpmListener)
    gpm.sample(tick())
    calls.clear()
    gpu.sample(tick(a=(MINE,)))
    gpm.sample(tick(a=(MINE,)))
    assert len(calls) <= 16, calls
    gpm.close()
