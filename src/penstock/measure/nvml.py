"""What the GPU itself says of a window of time: how busy it was, and what came to it over PCIe."""

# pynvml has no annotations, and may not be there.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingImports=false, reportMissingTypeStubs=false

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec


class Activity(msgspec.Struct, frozen=True):
    """One window on the GPU, as NVML tells it from Hopper on (GPM).

    Attributes:
        seconds: Its length.
        sm_active: Part of the time of its multiprocessors in which they were busy.
        received_bytes: Over PCIe, for whatever purpose and whatever process.
        note: Why something is missing.
    """

    seconds: float = 0.0
    sm_active: float | None = None
    received_bytes: int | None = None
    note: str = ""


class Meter:
    """A watch on one GPU.

    PCIe has an older counter too (field 198), which wraps several times a
    second at the speed of a copy.

    Args:
        nvml: The module ``pynvml``; None where there is none.
        uuid: Of the GPU.
        missing: Why there is none.
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
        """What a call gives; None, and a note why, where NVML refuses."""
        try:
            return call()
        except self._nvml.NVMLError as error:
            self._notes.append(f"{what}: {error}")
            return None

    def _sample(self) -> Any:
        sample = self._nvml.nvmlGpmSampleAlloc()
        return self._nvml.nvmlGpmSampleGet(self._nvml.nvmlDeviceGetHandleByUUID(self._uuid), sample)

    def _metrics(self) -> Any:
        """Of the time since the first sample: how busy in percent, and MiB that came each second."""
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
    """The meter of a GPU; it says what is missing."""
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
