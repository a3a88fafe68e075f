"""What a GPU did over an interval of time, by NVML's GPM: how busy it was, and what came over PCIe."""

from __future__ import annotations

import time
from collections.abc import Iterable
from math import isfinite

import msgspec

from penstock.errors import GpuMissing
from penstock.gpus.nvml import answer_of, nvml

MIB = 1 << 20
"""GPM reports PCIe traffic in MiB per second."""


class Activity(msgspec.Struct, frozen=True):
    """One interval on a GPU, by NVML's GPM, which exists from Hopper on."""

    seconds: float = 0.0  # length of the interval
    sm_active: float | None = None  # part of the multiprocessors' time in which they were busy, 0 to 1
    received_bytes: int | None = None  # bytes that came over PCIe, for any process and purpose
    note: str = ""  # why a value is missing


class Gpm:
    """NVML_GPM_METRIC_… of a GPU, or of an instance of one in MIG mode, since the last reading; from Hopper on."""

    def __init__(self, uuid: str, *metrics: int) -> None:
        known = self._nvml = nvml()
        self._device, self._instance = known.nvmlDeviceGetHandleByUUID(uuid), None
        if uuid.startswith("MIG-"):
            self._instance = known.nvmlDeviceGetGpuInstanceId(self._device)
            self._device = known.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self._device)
        if not known.nvmlGpmQueryDeviceSupport(self._device).isSupportedDevice:
            raise known.NVMLError(known.NVML_ERROR_NOT_SUPPORTED)
        self._asked = known.c_nvmlGpmMetricsGet_t()
        self._asked.version, self._asked.numMetrics = known.NVML_GPM_METRICS_GET_VERSION, len(metrics)
        for place, metric in enumerate(metrics):
            self._asked.metrics[place].metricId = metric
        self._samples = [known.nvmlGpmSampleAlloc(), known.nvmlGpmSampleAlloc()]
        self._began = False

    def read(self) -> list[float | None] | None:
        """Return each metric since the last reading, None for one that NVML does not report; None at first."""
        known, began, self._began = self._nvml, self._began, False
        before, now = self._samples = self._samples[::-1]
        if self._instance is None:
            known.nvmlGpmSampleGet(self._device, now)
        else:
            known.nvmlGpmMigSampleGet(self._device, self._instance, now)
        self._began = True
        if not began:
            return None
        self._asked.sample1, self._asked.sample2 = before, now
        known.nvmlGpmMetricsGet(self._asked)
        metrics = self._asked.metrics[: self._asked.numMetrics]
        values = [None if metric.nvmlReturn else float(metric.value) for metric in metrics]
        # Of a very short interval an H100's NVML reports NaN, and success.
        return [value if value is not None and isfinite(value) else None for value in values]

    def close(self) -> None:
        """Free the samples."""
        for sample in self._samples:
            self._nvml.nvmlGpmSampleFree(sample)


class Gpms:
    """A ``Gpm`` of each unit that is read: made at its first reading, freed at the first without it."""

    def __init__(self, *metrics: str) -> None:
        self._metrics = metrics  # NVML_GPM_METRIC_… that are asked for, by the ends of their names
        self._open: dict[str, Gpm | None] = {}

    def read(self, uuids: Iterable[str]) -> dict[str, list[float | None]]:
        """Return the metrics of units since they were last read, by UUID; units without any are left out."""
        before, self._open = self._open, {}
        for uuid in uuids:
            self._open[uuid] = before.pop(uuid) if uuid in before else answer_of(Gpm, uuid, *self._numbers())
        for gpm in filter(None, before.values()):
            gpm.close()
        return {uuid: values for uuid, gpm in self._open.items() if gpm and (values := answer_of(gpm.read))}

    def close(self) -> None:
        """Free all samples; the next reading is a first one."""
        self.read(())

    def _numbers(self) -> list[int]:
        return [getattr(nvml(), f"NVML_GPM_METRIC_{name}") for name in self._metrics]


class Meter:
    """Watches one GPU over an interval.

    NVML's older PCIe counter (field 198) is not used: it wraps several times a
    second at the speed of a copy.
    """

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid  # UUID of the GPU; empty for none
        self._began = 0.0
        self.activity = Activity()

    def begin(self) -> None:
        self._gpm, self._note = self._opened()
        self._began = time.monotonic()

    def end(self) -> None:
        seconds = time.monotonic() - self._began
        if self._gpm is None:
            self.activity = Activity(seconds, note=self._note)
            return
        active, received = answer_of(self._gpm.read) or (None, None)
        self._gpm.close()
        values = (("SM activity", active), ("PCIe", received))
        note = "; ".join(f"{what}: NVML does not report it" for what, value in values if value is None)
        self.activity = Activity(
            seconds,
            None if active is None else active / 100,
            None if received is None else round(received * MIB * seconds),
            note,
        )

    def _opened(self) -> tuple[Gpm | None, str]:
        """Begin an interval; return None and why, if that cannot be."""
        if not self._uuid:
            return None, "no GPU"
        try:
            known = nvml()
        except GpuMissing as missing:
            return None, str(missing)
        try:
            gpm = Gpm(self._uuid, known.NVML_GPM_METRIC_SM_UTIL, known.NVML_GPM_METRIC_PCIE_RX_PER_SEC)
            gpm.read()
        except known.NVMLError as error:
            return None, f"GPM: {error}"
        return gpm, ""


def meter_of(device: str) -> Meter:
    """Make the meter of a GPU; its note names what is missing."""
    if device == "cpu":
        return Meter("")
    import torch

    from penstock.memory.cuda import index_of, uuid_of

    return Meter(uuid_of(torch, index_of(torch, device)))
