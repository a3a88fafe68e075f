"""On a real GPU: what the fake NVML promises of NVML, through the listeners that use it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.gpus.nvml import devices, gpu_processes, gpus, visible_gpus
from penstock.runs.listeners.contract import Sample, Tick, Tree, WatchedRun
from penstock.runs.listeners.energy import EnergyListener
from penstock.runs.listeners.gpu import GpmListener, GpuListener
from penstock.testing.listener import ListenerContract

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

HELD_BYTES = 1 << 28


@pytest.fixture(autouse=True, scope="module")
def computing() -> torch.Tensor:
    """This process is one that NVML lists."""
    held = torch.ones(HELD_BYTES, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    return held


def listening(kind: Any, *args: Any) -> Any:
    listener = kind(*args)
    if why := listener.unavailable():
        pytest.skip(why)
    return listener


def asked(listener: Any) -> Sample:
    runs = (WatchedRun("mine", 0, (1, 1), os.getpid()),)
    return listener.sample(Tick(time.time(), runs, {"mine": Tree((os.getpid(),), 0.0, 0, 0, 0, 0)}, 0.0))


class TestGpuListenerOnAGpu(ListenerContract):
    def make(self) -> Any:
        return listening(GpuListener)


class TestGpmListenerOnAGpu(ListenerContract):
    def make(self) -> Any:
        return listening(GpmListener)


class TestEnergyListenerOnAGpu(ListenerContract):
    def make(self) -> Any:
        return listening(EnergyListener, Path("/nowhere"))


def test_the_gpus_in_sight_are_those_that_torch_sees() -> None:
    seen = [gpu.uuid.partition("-")[2] for gpu in visible_gpus(os.environ)]
    assert [str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())] == seen
    for gpu, migs in gpus():
        assert gpu.memory_bytes > 1 << 30
        assert all(mig.profile and mig.parent == gpu.uuid for mig in migs)


def test_a_process_on_a_gpu_is_listed_with_what_it_holds_or_that_it_is_not_known_is_said() -> None:
    listener = listening(GpuListener)
    sample = asked(listener)
    assert sample.host.gauges["gpu.0.memory_bytes"] > HELD_BYTES
    if not sample.runs:
        listed = [gpu_processes(device) for _, device in devices(os.environ)]
        pytest.skip(f"NVML lists {listed}, and this process is {os.getpid()}: {sample.notes}")
    assert sample.runs["mine"].gauges["gpu.memory_bytes"] > HELD_BYTES


def test_work_shows_in_gpm_and_in_the_energy_counter() -> None:
    gpm, energy = listening(GpmListener), listening(EnergyListener, Path("/nowhere"))
    asked(gpm)
    asked(energy)
    factors = torch.rand(4096, 4096, device="cuda", dtype=torch.bfloat16)
    until = time.monotonic() + 2
    while time.monotonic() < until:
        torch.mm(factors, factors)
        torch.cuda.synchronize()
    gauges = asked(gpm).host.gauges
    assert 10 < gauges["gpm.0.sm_active_percent"] <= 100
    assert 0 < gauges["gpm.0.tensor_percent"] <= 100
    assert asked(energy).host.counters["energy.gpu0_j"] > 10
    gpm.close()
