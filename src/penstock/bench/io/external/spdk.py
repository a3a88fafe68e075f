"""spdk_nvme_perf: NVMe from user space, https://spdk.io/doc/nvme.html."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from penstock.bench.io.plan import Case, Settings
from penstock.bench.io.processes import Answer, MeasurementFailed
from penstock.bench.io.target import Target
from penstock.io.advice.measurements import Measurement

_DRIVERS = ("vfio-pci", "uio_pci_generic")
_NVME_CLASS = "0x010802"
_TOTAL = re.compile(r"^Total\s*:\s+(?P<iops>[\d.]+)\s+(?P<mib_s>[\d.]+)\s+(?P<mean_us>[\d.]+)", re.MULTILINE)
_PERCENTILE = re.compile(r"^\s*(?P<rank>[\d.]+)%\s*:\s*(?P<us>[\d.]+)us", re.MULTILINE)


class Spdk:
    """Reads an NVMe device that is unbound from the kernel's driver; SPDK knows no file system on it."""

    name = "spdk"
    programs = ("spdk_nvme_perf",)

    def __init__(self, devices: Path = Path("/sys/bus/pci/drivers")) -> None:
        self._devices = devices

    def refusal(self, target: Target) -> str:
        if self._owned():
            return ""
        return (
            "it reads only NVMe devices that are bound to vfio-pci or uio_pci_generic instead of the kernel's "
            "driver (SPDK's scripts/setup.sh does that), and there is none"
        )

    def cases(self, settings: Settings) -> Iterator[Case]:
        if "host" in settings.dest:
            for bs, qd, pattern in product(settings.bs_bytes, settings.qd, settings.pattern):
                yield Case("spdk:nvme", bs, qd, 1, pattern)

    def command(self, program: str, case: Case, target: Target, settings: Settings) -> list[str]:
        workload = "randread" if case.pattern == "random" else "read"
        seconds, warm_up = math.ceil(settings.runtime_s), math.ceil(settings.warm_up_s)
        return [
            *(program, "-q", str(case.qd), "-o", str(case.bs_bytes), "-w", workload, "-c", "0x1", "-L"),
            *("-t", str(seconds), "-a", str(warm_up), "-r", f"trtype:PCIe traddr:{self._owned()[0]}"),
        ]

    def row(self, case: Case, answer: Answer, settings: Settings, *, cold: bool) -> Measurement:
        found = _TOTAL.search(answer.text)
        if found is None or float(found["iops"]) == 0:
            raise MeasurementFailed(f"spdk_nvme_perf's answer is not understood: {answer.text.strip()[-200:]!r}")
        seconds = math.ceil(settings.runtime_s)
        ranks = {float(m["rank"]): float(m["us"]) for m in _PERCENTILE.finditer(answer.text)}
        return case.measured(
            max(1, round(float(found["iops"]) * seconds)),
            seconds,
            seconds,  # it polls, so it takes one core all the time
            cold=True,
            p50_us=ranks.get(50.0),
            p99_us=ranks.get(99.0),
            p999_us=ranks.get(99.9),
            path_taken="SPDK, NVMe from user space, polled",
            note="reads the device from its beginning, not the file; its one core is always busy",
        )

    def _owned(self) -> list[str]:
        return sorted(
            device.name
            for driver in _DRIVERS
            for device in (self._devices / driver).glob("*:*:*.*")
            if (device / "class").is_file() and (device / "class").read_text().strip() == _NVME_CLASS
        )
