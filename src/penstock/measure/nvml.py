"""What the GPU itself says of an interval of time: how busy it was, and what came to it over PCIe."""

# pynvml has no annotations, and may not be there.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingImports=false, reportMissingTypeStubs=false

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec


class Activity(msgspec.Struct, frozen=True):
    """One interval on the GPU.

    Attributes:
        seconds: Its length.
        sm_active: Part of the time of its multiprocessors in which they were busy; NVML tells from Hopper on.
        received_bytes: Over PCIe, for whatever purpose and whatever process.
        note: Why something is missing.
    """

    seconds: float = 0.0
    sm_active: float | None = None
    received_bytes: int | None = None
    note: str = ""


class Meter:
    """A watch on one GPU.

    Args:
        nvml: The module ``pynvml``; None where there is none.
        uuid: Of the GPU.
        missing: Why there is none.
    """

    def __init__(self, nvml: Any, uuid: str, missing: str = "") -> None:
        self._nvml = nvml
        self._uuid = uuid
        self._before: tuple[Any, Any] = (None, None)
        self._notes = [missing] if missing else []
        self._began = 0.0
        self.activity = Activity()

    def begin(self) -> None:
        self._began = time.monotonic()
        if self._nvml is not None:
            self._before = (
                self._tried("SM activity", self._sample),
                self._tried("PCIe counter", self._received_bytes),
            )

    def end(self) -> None:
        sample, received = self._before
        seconds = time.monotonic() - self._began
        active = self._tried("SM activity", lambda: self._active_since(sample)) if sample is not None else None
        now = self._tried("PCIe counter", self._received_bytes) if received is not None else None
        if now is not None and now < received:
            now = self._notes.append("PCIe counter: it has begun anew")
        notes = "; ".join(dict.fromkeys(self._notes))
        self.activity = Activity(seconds, active, None if now is None else now - received, notes)

    def _tried(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._nvml.NVMLError as error:
            self._notes.append(f"{what}: {error}")
            return None

    def _device(self) -> Any:
        return self._nvml.nvmlDeviceGetHandleByUUID(self._uuid)

    def _sample(self) -> Any:
        sample = self._nvml.nvmlGpmSampleAlloc()
        return self._nvml.nvmlGpmSampleGet(self._device(), sample)

    def _active_since(self, before: Any) -> float:
        asked = self._nvml.c_nvmlGpmMetricsGet_t()
        asked.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        asked.sample1, asked.sample2 = before, self._sample()
        asked.numMetrics = 1
        asked.metrics[0].metricId = self._nvml.NVML_GPM_METRIC_SM_UTIL
        metric = self._nvml.nvmlGpmMetricsGet(asked).metrics[0]
        for sample in (asked.sample1, asked.sample2):
            self._nvml.nvmlGpmSampleFree(sample)
        if metric.nvmlReturn:
            raise self._nvml.NVMLError(metric.nvmlReturn)
        return float(metric.value) / 100

    def _received_bytes(self) -> int:
        (field,) = self._nvml.nvmlDeviceGetFieldValues(
            self._device(), [self._nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES]
        )
        if field.nvmlReturn:
            raise self._nvml.NVMLError(field.nvmlReturn)
        return int(field.value.ullVal)


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
