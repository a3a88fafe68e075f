"""Listens to GPUs by NVML: how busy, how hot, how fast, and the memory that each run has there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from penstock.errors import GpuMissing
from penstock.gpus.nvml import devices, gpu_processes, instances, nvml, told, users_hidden
from penstock.runs.listeners.contract import Sample, Tick, Values

_THROTTLED = {
    "power": ("SwPowerCap", "HwPowerBrakeSlowdown"),
    "heat": ("SwThermalSlowdown", "HwThermalSlowdown"),
    "hardware": ("HwSlowdown",),
}
"""Names of series, and nvmlClocksEventReason… of each."""


class GpuListener:
    """What NVML tells of each GPU in sight, and of the processes of each run on them.

    ``gpu.N`` is the N-th GPU that ``CUDA_VISIBLE_DEVICES`` shows; its instances in MIG mode are ``gpu.N.migG``, by
    the number of their GPU instance. What a GPU does not tell, or one that is lost, is left out.

    Args:
        environment: Variables that say which GPUs are in sight.
    """

    name = "gpu"

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._devices: list[Any] = []

    def unavailable(self) -> str | None:
        try:
            self._devices = [handle for _, handle in devices(self._environment)]
        except GpuMissing as missing:
            return str(missing)
        return None

    def sample(self, tick: Tick) -> Sample:
        gauges: dict[str, float] = {}
        used_bytes: dict[int, list[int | None]] = {}
        for place, device in enumerate(self._devices):
            gauges.update({f"gpu.{place}.{name}": value for name, value in readings(device).items()})
            for mig in instances(device):
                if memory := told(nvml().nvmlDeviceGetMemoryInfo, mig.handle):
                    gauges[f"gpu.{place}.mig{mig.number}.memory_bytes"] = memory.used
            for pid, used in gpu_processes(device).items():
                used_bytes.setdefault(pid, []).append(used)
        if used_bytes and (why := users_hidden()):
            return Sample(Values(gauges=gauges), notes=(f"which run uses which GPU is not known: {why}",))
        runs: dict[str, Values] = {}
        for run in tick.runs:
            its = [used for pid in tick.trees[run.id].pids for used in used_bytes.get(pid, ())]
            if its and None not in its:
                runs[run.id] = Values(gauges={"gpu.memory_bytes": sum(filter(None, its))})
        return Sample(Values(gauges=gauges), runs)

    def close(self) -> None:
        self._devices = []


def readings(device: Any) -> dict[str, float]:
    """Return what NVML tells of a GPU now."""
    known = nvml()
    busy, memory = told(known.nvmlDeviceGetUtilizationRates, device), told(known.nvmlDeviceGetMemoryInfo, device)
    power_mw = told(known.nvmlDeviceGetPowerUsage, device)
    found = {
        "utilisation_percent": busy and busy.gpu,
        "memory_bytes": memory and memory.used,
        "power_w": power_mw and power_mw / 1000,
        "sm_mhz": told(known.nvmlDeviceGetClockInfo, device, known.NVML_CLOCK_SM),
        "memory_mhz": told(known.nvmlDeviceGetClockInfo, device, known.NVML_CLOCK_MEM),
        "temperature_c": told(known.nvmlDeviceGetTemperature, device, known.NVML_TEMPERATURE_GPU),
    }
    if (reasons := told(known.nvmlDeviceGetCurrentClocksEventReasons, device)) is not None:
        for name, bits in _THROTTLED.items():
            found[f"throttled_{name}"] = any(
                reasons & getattr(known, f"nvmlClocksEventReason{bit}") for bit in bits
            )
    return {name: float(value) for name, value in found.items() if value is not None}
