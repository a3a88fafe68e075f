"""Listens to GPUs: by NVML, by its GPM counters, and by DCGM, which alone sees multiprocessors before Hopper."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from penstock.errors import GpuMissing
from penstock.gpus.gpm import MIB, Gpms
from penstock.gpus.nvml import answer_of, devices, gpu_processes, instances, nvml, users_hidden
from penstock.linux.process import die_with_parent
from penstock.runs.listeners.contract import Listener, Sample, Tick, Values

_THROTTLED = {
    "power": ("SwPowerCap", "HwPowerBrakeSlowdown"),
    "heat": ("SwThermalSlowdown", "HwThermalSlowdown"),
    "hardware": ("HwSlowdown",),
}
"""Names of series, and nvmlClocksEventReason… of each."""


class _OfGpus(Listener):
    """Looks at the GPUs in sight."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment  # variables that name them
        self._devices: list[tuple[str, Any]] = []

    def unavailable(self) -> str | None:
        try:
            self._devices = devices(self._environment)
        except GpuMissing as missing:
            return str(missing)
        return None


class GpuListener(_OfGpus):
    """What NVML reports of each GPU in sight, and of the processes of each run on them.

    ``gpu.N`` is the N-th GPU that ``CUDA_VISIBLE_DEVICES`` shows; its instances in MIG mode are ``gpu.N.migG``, by
    the number of their GPU instance. What a GPU does not report is left out, and so is a lost GPU.
    """

    name = "gpu"

    def sample(self, tick: Tick) -> Sample:
        gauges: dict[str, float] = {}
        used_bytes: dict[int, list[int | None]] = {}
        for place, (_, device) in enumerate(self._devices):
            gauges.update({f"gpu.{place}.{name}": value for name, value in readings(device).items()})
            for mig in instances(device):
                if memory := answer_of(nvml().nvmlDeviceGetMemoryInfo, mig.handle):
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


def readings(device: Any) -> dict[str, float]:
    """Return NVML's readings of a GPU now."""
    known = nvml()
    busy = answer_of(known.nvmlDeviceGetUtilizationRates, device)
    memory = answer_of(known.nvmlDeviceGetMemoryInfo, device)
    power_mw = answer_of(known.nvmlDeviceGetPowerUsage, device)
    found = {
        "utilisation_percent": busy and busy.gpu,
        "memory_bytes": memory and memory.used,
        "power_w": power_mw and power_mw / 1000,
        "sm_mhz": answer_of(known.nvmlDeviceGetClockInfo, device, known.NVML_CLOCK_SM),
        "memory_mhz": answer_of(known.nvmlDeviceGetClockInfo, device, known.NVML_CLOCK_MEM),
        "temperature_c": answer_of(known.nvmlDeviceGetTemperature, device, known.NVML_TEMPERATURE_GPU),
    }
    if (reasons := answer_of(known.nvmlDeviceGetCurrentClocksEventReasons, device)) is not None:
        for name, bits in _THROTTLED.items():
            found[f"throttled_{name}"] = any(
                reasons & getattr(known, f"nvmlClocksEventReason{bit}") for bit in bits
            )
    return {name: float(value) for name, value in found.items() if value is not None}


_METRICS = {
    "sm_active_percent": ("SM_UTIL", 1),
    "sm_occupancy_percent": ("SM_OCCUPANCY", 1),
    "tensor_percent": ("ANY_TENSOR_UTIL", 1),
    "dram_percent": ("DRAM_BW_UTIL", 1),
    "pcie_tx_bytes_per_s": ("PCIE_TX_PER_SEC", MIB),
    "pcie_rx_bytes_per_s": ("PCIE_RX_PER_SEC", MIB),
}
"""Names of series; NVML_GPM_METRIC_… of each, and its unit."""


class GpmListener(_OfGpus):
    """What each GPU in sight, or each of its instances in MIG mode, did since the last tick."""

    name = "gpm"

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        super().__init__(environment)
        self._gpms = Gpms(*(metric for metric, _ in _METRICS.values()))

    def unavailable(self) -> str | None:
        why = super().unavailable()
        if why is None and not any(_supports(device) for _, device in self._devices):
            return "no GPU in sight has NVML's GPM, which begins with Hopper (H100)"
        return why

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
    found = answer_of(nvml().nvmlGpmQueryDeviceSupport, device)
    return bool(found and found.isSupportedDevice)


_FIELDS = {
    1001: ("gr_engine_active_percent", 100),
    1002: ("sm_active_percent", 100),
    1003: ("sm_occupancy_percent", 100),
    1004: ("tensor_percent", 100),
    1005: ("dram_percent", 100),
    1009: ("pcie_tx_bytes_per_s", 1),
    1010: ("pcie_rx_bytes_per_s", 1),
    1011: ("nvlink_tx_bytes_per_s", 1),
    1012: ("nvlink_rx_bytes_per_s", 1),
}
"""DCGM_FI_PROF_…: names of series, and the unit of each. Activities are parts from 0 to 1."""
_COMMAND = ("dcgmi", "dmon", "-e", ",".join(map(str, _FIELDS)), "-d", "1000")


class DcgmListener(Listener):
    """What ``dcgmi dmon`` prints of each GPU of the machine, once a second: ``dcgm.N`` by DCGM's numbers.

    It needs NVIDIA's nv-hostengine, and reads from a process of its own until it is closed.
    """

    name = "dcgm"

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._last_words = ""

    def unavailable(self) -> str | None:
        if shutil.which(_COMMAND[0]) is None:
            return "dcgmi is not on the PATH: install NVIDIA's DCGM (datacenter-gpu-manager)"
        return None

    def sample(self, tick: Tick) -> Sample:
        process = self._process = self._process or _started()
        ended = process.poll()
        gauges = self._read(process)
        if ended is None:
            return Sample(Values(gauges=gauges))
        how = f"by {signal.Signals(-ended).name}" if ended < 0 else f"with exit code {ended}"
        why = f": {self._last_words}" if self._last_words else ""
        return Sample(notes=(f"dcgmi dmon has ended {how}, and is not started again{why}",))

    def close(self) -> None:
        if self._process and self._process.stdout:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def _read(self, process: subprocess.Popen[bytes]) -> dict[str, float]:
        """Return the newest values that have come. A line that has no values is an error, or a heading."""
        assert process.stdout
        while chunk := process.stdout.read(1 << 16):
            self._unread += chunk
        *lines, self._unread = self._unread.split(b"\n")
        found: dict[str, float] = {}
        for line in lines:
            words = line.decode(errors="replace").split()
            if words[:1] == ["GPU"] and len(words) == 2 + len(_FIELDS):
                found |= _values(words[1], words[2:])
            elif words and words[0] not in {"#Entity", "ID"}:
                self._last_words = " ".join(words)
        return found


def _started() -> subprocess.Popen[bytes]:
    parent = os.getpid()
    process = subprocess.Popen(
        _COMMAND,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509  # it only calls the kernel
    )
    assert process.stdout
    os.set_blocking(process.stdout.fileno(), False)
    return process


def _values(gpu: str, words: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for (name, unit), word in zip(_FIELDS.values(), words, strict=True):
        with suppress(ValueError):  # N/A: this GPU does not report it, or not yet
            found[f"dcgm.{gpu}.{name}"] = float(word) * unit
    return found
