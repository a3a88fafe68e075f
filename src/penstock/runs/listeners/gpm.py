"""Listens to what the parts of a GPU do: multiprocessors, tensor cores, memory, PCIe (NVML's GPM)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from penstock.errors import GpuMissing
from penstock.gpus.gpm import MIB, Gpms
from penstock.gpus.nvml import devices, instances, nvml, told
from penstock.runs.listeners.contract import Sample, Tick, Values

_METRICS = {
    "sm_active_percent": ("SM_UTIL", 1),
    "sm_occupancy_percent": ("SM_OCCUPANCY", 1),
    "tensor_percent": ("ANY_TENSOR_UTIL", 1),
    "dram_percent": ("DRAM_BW_UTIL", 1),
    "pcie_tx_bytes_per_s": ("PCIE_TX_PER_SEC", MIB),
    "pcie_rx_bytes_per_s": ("PCIE_RX_PER_SEC", MIB),
}
"""Names of series; NVML_GPM_METRIC_… of each, and its unit."""


class GpmListener:
    """What each GPU in sight, or each of its instances in MIG mode, did since the last tick.

    Args:
        environment: Variables that say which GPUs are in sight.
    """

    name = "gpm"

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._devices: list[tuple[str, Any]] = []
        self._gpms = Gpms(*(metric for metric, _ in _METRICS.values()))

    def unavailable(self) -> str | None:
        try:
            self._devices = devices(self._environment)
        except GpuMissing as missing:
            return str(missing)
        if not any(_supports(device) for _, device in self._devices):
            return "no GPU in sight has NVML's GPM, which begins with Hopper (H100)"
        return None

    def sample(self, tick: Tick) -> Sample:
        units: dict[str, str] = {}
        for place, (uuid, device) in enumerate(self._devices):
            migs = {f"gpm.{place}.mig{mig.number}": mig.uuid for mig in instances(device)}
            units |= migs or {f"gpm.{place}": uuid}
        found = self._gpms.read(units.values())
        gauges = {
            f"{name}.{series}": value * scale
            for name, uuid in units.items()
            for (series, (_, scale)), value in zip(_METRICS.items(), found.get(uuid, ()), strict=False)
            if value is not None
        }
        return Sample(Values(gauges=gauges))

    def close(self) -> None:
        self._gpms.close()


def _supports(device: Any) -> bool:
    found = told(nvml().nvmlGpmQueryDeviceSupport, device)
    return bool(found and found.isSupportedDevice)
