"""What NVML says of a GPU over an interval of time: how busy it was, and what came over PCIe."""

# pynvml has no annotations, and may not be there.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingImports=false, reportMissingTypeStubs=false

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec


class Activity(msgspec.Struct, frozen=True):
    """One interval on a GPU, by NVML's GPM, which exists from Hopper on.

    Attributes:
        seconds: Length of the interval.
        sm_active: Part of the multiprocessors' time in which they were busy, 0 to 1.
        received_bytes: Bytes that came over PCIe, for any process and purpose.
        note: Why a value is missing.
    """

    seconds: float = 0.0
    sm_active: float | None = None
    received_bytes: int | None = None
    note: str = ""


class Meter:
    """Watches one GPU over an interval.

    NVML's older PCIe counter (field 198) is not used: it wraps several times a
    second at the speed of a copy.

    Args:
        nvml: The module ``pynvml``; None if it cannot be used.
        uuid: UUID of the GPU.
        missing: Why the module cannot be used.
    """

    def __init__(self, nvml: Any, uuid: str, missing: str = "") -> None:
        self._nvml = nvml
        self._uuid = uuid
        self._notes = [missing] if missing else []
        self._before: Any = None
        self._began = 0.0
        self.activity = Activity()

    def begin(self) -> None:
        self._before = None if self._nvml is None else self._tried("GPM", self._sample)
        self._began = time.monotonic()

    def end(self) -> None:
        seconds = time.monotonic() - self._began
        metrics = None if self._before is None else self._tried("GPM", self._metrics)
        if metrics is None:
            self.activity = Activity(seconds, note="; ".join(self._notes))
            return
        active = self._tried("SM activity", lambda: self._value(metrics[0]) / 100)
        received = self._tried("PCIe", lambda: round(self._value(metrics[1]) * 2**20 * seconds))
        self.activity = Activity(seconds, active, received, "; ".join(self._notes))

    def _tried(self, what: str, call: Callable[[], Any]) -> Any:
        """Return what a call gives; None, and a note why, if NVML refuses."""
        try:
            return call()
        except self._nvml.NVMLError as error:
            self._notes.append(f"{what}: {error}")
            return None

    def _sample(self) -> Any:
        sample = self._nvml.nvmlGpmSampleAlloc()
        return self._nvml.nvmlGpmSampleGet(self._nvml.nvmlDeviceGetHandleByUUID(self._uuid), sample)

    def _metrics(self) -> Any:
        """Return, since the first sample, how busy the GPU was in percent, and MiB received per second."""
        asked = self._nvml.c_nvmlGpmMetricsGet_t()
        asked.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        asked.sample1, asked.sample2 = self._before, self._sample()
        asked.numMetrics = 2
        asked.metrics[0].metricId = self._nvml.NVML_GPM_METRIC_SM_UTIL
        asked.metrics[1].metricId = self._nvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC
        metrics = self._nvml.nvmlGpmMetricsGet(asked).metrics
        for sample in (asked.sample1, asked.sample2):
            self._nvml.nvmlGpmSampleFree(sample)
        return metrics

    def _value(self, metric: Any) -> float:
        if metric.nvmlReturn:
            raise self._nvml.NVMLError(metric.nvmlReturn)
        return float(metric.value)


def meter_of(device: str) -> Meter:
    """Make the meter of a GPU; its note says what is missing."""
    if device == "cpu":
        return Meter(None, "", "no GPU")
    try:
        import pynvml
    except ImportError:
        return Meter(None, "", "nvidia-ml-py is not installed")
    import torch

    from penstock.memory.cuda import index_of, uuid_of

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Meter(None, "", f"NVML: {error}")
    return Meter(pynvml, uuid_of(torch, index_of(torch, device)))
