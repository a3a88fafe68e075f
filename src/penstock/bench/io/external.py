"""Other tools that measure storage, by name; their numbers go into one table with Penstock's."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from penstock.bench.io.plan import Case, IoSettings
from penstock.bench.io.target import Target
from penstock.bench.measure.pool import Answer, MeasurementFailed, answer
from penstock.io.advice.measurements import Measurement


class Tool(Protocol):
    """Another benchmark of storage, used only for reading."""

    @property
    def name(self) -> str:
        """Name of the tool in ``--external``."""
        ...

    @property
    def programs(self) -> tuple[str, ...]:
        """Names and paths of its program; the first that exists is run."""
        ...

    def refusal(self, target: Target) -> str:
        """Return why the tool cannot read this target here; empty if it can."""
        ...

    def cases(self, settings: IoSettings) -> Iterator[Case]:
        """Yield the cases that it can measure; their ``mech`` begins with the tool's name and a colon."""
        ...

    def command(self, program: str, case: Case, target: Target, settings: IoSettings) -> list[str]:
        """Return the command of a case."""
        ...

    def row(self, case: Case, answer: Answer, settings: IoSettings, *, cold: bool) -> Measurement:
        """Parse the command's answer.

        Raises:
            MeasurementFailed: the answer is not understood.
        """
        ...


_LEAST_CPU_S = 0.02
_TOO_LITTLE = "fio counts CPU time in whole milliseconds, and this took too few of them"
_JOBS = ("psync", "psync-buffered")
ENGINES = ("io_uring", "io_uring-batched", "libaio", *_JOBS)
"""fio's engines, some with a suffix that says how they are used."""


class Fio:
    """fio's engines for files.

    ``io_uring`` submits and completes by fio's defaults; ``io_uring-batched`` a
    quarter of the depth at a time, as Penstock's loop does.
    """

    name = "fio"
    programs = ("fio",)

    def refusal(self, target: Target) -> str:
        return "" if target.is_file else f"it reads files, and {target.name} is none"

    def cases(self, settings: IoSettings) -> Iterator[Case]:
        if "host" not in settings.dest:
            return
        for bs, qd, pattern, engine in product(settings.bs_bytes, settings.qd, settings.pattern, ENGINES):
            if engine not in _JOBS:
                yield Case(f"fio:{engine}", bs, qd, 1, pattern)
        for bs, pattern, engine, threads in product(settings.bs_bytes, settings.pattern, _JOBS, settings.threads):
            # Each job has one read under way: its threads are its depth.
            yield Case(f"fio:{engine}", bs, threads, threads, pattern)

    def command(self, program: str, case: Case, target: Target, settings: IoSettings) -> list[str]:
        engine = case.mech.partition(":")[2]
        options = {
            "name": "penstock",
            "filename": target.path.replace("\\", "\\\\").replace(":", "\\:"),
            "size": target.nbytes,
            "rw": "randread" if case.pattern == "random" else "read",
            "bs": case.bs_bytes,
            "ioengine": engine.partition("-")[0],
            "iodepth": 1 if engine in _JOBS else case.qd,
            "numjobs": case.threads,
            "direct": int(engine != "psync-buffered"),
            "invalidate": int(settings.cold),
            "runtime": f"{round(1000 * settings.runtime_s)}ms",
            "ramp_time": f"{round(1000 * settings.warm_up_s)}ms",
            "randrepeat": 0,
            "allow_file_create": 0,
            "clat_percentiles": 0,
            "lat_percentiles": 1,
            "output-format": "json",
        }
        if engine.startswith("io_uring"):
            options |= {"fixedbufs": 1, "registerfiles": 1}
        if engine == "io_uring-batched":
            batch = max(1, case.qd // 4)
            options |= {"iodepth_batch_submit": batch, "iodepth_batch_complete_min": batch}
            options |= {"iodepth_batch_complete_max": case.qd}
        part = (target.nbytes or 0) // case.threads // case.bs_bytes * case.bs_bytes
        if engine in _JOBS and part:  # else a job could find what another has read in the cache
            options |= {"size": part, "offset_increment": part}
        flags = ["--readonly", "--group_reporting", "--time_based"]
        if settings.cold and engine == "psync-buffered":  # end when all has been read, as it would be warm then
            flags.remove("--time_based")
            options["ramp_time"] = 0
        return [program, *flags, *(f"--{name}={value}" for name, value in options.items())]

    def row(self, case: Case, answer: Answer, settings: IoSettings, *, cold: bool) -> Measurement:
        engine = case.mech.partition(":")[2]
        try:
            # fio's warnings come before its JSON.
            report = json.loads(answer.text[answer.text.index("{") :])
            job = report["jobs"][0]
            read: dict[str, Any] = job["read"]
            ops, elapsed_s = read["total_ios"], read["runtime"] / 1e3
            # Percent of all jobs' time together.
            cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3
            percentiles = read["lat_ns"].get("percentile", {})
            version = report["fio version"].replace("-", " ")
        except (ValueError, LookupError, TypeError) as error:
            raise MeasurementFailed(f"fio's answer is not understood: {error!r}") from None
        if job.get("error"):
            raise MeasurementFailed(f"fio reports error {job['error']}")
        if not ops or not elapsed_s:
            raise MeasurementFailed("fio has read nothing")
        p50_us, p99_us, p999_us = (
            percentiles[rank] / 1e3 if rank in percentiles else None
            for rank in ("50.000000", "99.000000", "99.900000")
        )
        cache = "page cache" if engine == "psync-buffered" else "O_DIRECT"
        more = {"io_uring": ", registered memory", "io_uring-batched": ", registered memory, batches"}.get(engine)
        jobs = f", {case.threads} jobs" if engine in _JOBS else ""
        return case.measured(
            ops,
            elapsed_s,
            cpu_s,
            cold=cold,
            p50_us=p50_us,
            p99_us=p99_us,
            p999_us=p999_us,
            note=_TOO_LITTLE if cpu_s < _LEAST_CPU_S else "",
            path_taken=f"{version}, {engine.partition('-')[0]}, {cache}{more or ''}{jobs}",
        )


_TRANSFERS = {"GPUD": 0, "CPUONLY": 1, "CPU_GPU": 2}
_GDSIO_LINE = re.compile(
    r"XferType: (?P<transfer>\w+) .*?"
    r"Throughput: (?P<gib_s>[\d.]+) GiB/sec,? Avg_Latency: (?P<latency_us>[\d.]+) usecs? "
    r"ops: (?P<ops>\d+) total_time (?P<elapsed_s>[\d.]+) secs?",
    re.DOTALL,
)


class Gdsio:
    """gdsio's transfers: straight to the GPU, to the host, and through the host to the GPU."""

    name = "gdsio"
    programs = ("gdsio", "/usr/local/cuda/gds/tools/gdsio")

    def refusal(self, target: Target) -> str:
        return "" if target.is_file else f"it reads files, and {target.name} is none"

    def cases(self, settings: IoSettings) -> Iterator[Case]:
        for bs, pattern, dest, threads in product(
            settings.bs_bytes, settings.pattern, settings.dest, settings.threads
        ):
            if bs % 4096 or dest == "pinned":
                continue
            for transfer in ("GPUD", "CPU_GPU") if dest.startswith("cuda") else ("CPUONLY",):
                # Each thread has one read under way.
                yield Case(f"gdsio:{transfer}", bs, threads, threads, pattern, dest)

    def command(self, program: str, case: Case, target: Target, settings: IoSettings) -> list[str]:
        assert target.nbytes is not None
        options: dict[str, object] = {
            "f": target.path,
            "d": case.dest.partition(":")[2] or 0,
            "w": case.threads,
            "s": f"{target.nbytes >> 10}K",
            "i": f"{case.bs_bytes >> 10}K",
            "x": _TRANSFERS[case.mech.partition(":")[2]],
            "I": 2 if case.pattern == "random" else 0,  # 1 and 3 would write
            "T": math.ceil(settings.runtime_s),
        }
        return [program, *(word for name, value in options.items() for word in (f"-{name}", str(value)))]

    def row(self, case: Case, answer: Answer, settings: IoSettings, *, cold: bool) -> Measurement:
        found = _GDSIO_LINE.search(answer.text)
        if found is None or int(found["ops"]) == 0 or float(found["elapsed_s"]) == 0:
            raise MeasurementFailed(f"gdsio's answer is not understood: {answer.text.strip()[-200:]!r}")
        elapsed_s = float(found["elapsed_s"])
        return case.measured(
            int(found["ops"]),
            elapsed_s,
            answer.cpu_s,
            cold=cold,
            copy_included=found["transfer"] == "CPU_GPU",
            path_taken=f"gdsio, XferType {found['transfer']}",
            note=f"mean latency {float(found['latency_us']):.0f} us; CPU time includes the start",
        )


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

    def cases(self, settings: IoSettings) -> Iterator[Case]:
        if "host" in settings.dest:
            for bs, qd, pattern in product(settings.bs_bytes, settings.qd, settings.pattern):
                yield Case("spdk:nvme", bs, qd, 1, pattern)

    def command(self, program: str, case: Case, target: Target, settings: IoSettings) -> list[str]:
        workload = "randread" if case.pattern == "random" else "read"
        seconds, warm_up = math.ceil(settings.runtime_s), math.ceil(settings.warm_up_s)
        return [
            *(program, "-q", str(case.qd), "-o", str(case.bs_bytes), "-w", workload, "-c", "0x1", "-L"),
            *("-t", str(seconds), "-a", str(warm_up), "-r", f"trtype:PCIe traddr:{self._owned()[0]}"),
        ]

    def row(self, case: Case, answer: Answer, settings: IoSettings, *, cold: bool) -> Measurement:
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


_DEVICE = Path("/dev/libnvm0")
_THREADS = 1 << 17
_QUEUES = 64
_SPAN_BYTES = 1 << 30
_BAM_LINE = re.compile(r"Elapsed Time: (?P<us>[\d.e+]+)\s+Number of Ops: (?P<ops>\d+)\s+Data Size")


class Bam:
    """Reads an NVMe device that BaM's kernel module holds; each thread of the GPU reads one block."""

    name = "bam"
    programs = ("nvm-block-bench",)

    def __init__(self, device: Path = _DEVICE) -> None:
        self._device = device

    def refusal(self, target: Target) -> str:
        if self._device.exists():
            return ""
        return f"it reads only NVMe devices that BaM's kernel module holds, and there is no {self._device}"

    def cases(self, settings: IoSettings) -> Iterator[Case]:
        for bs, qd, pattern, dest in product(settings.bs_bytes, settings.qd, settings.pattern, settings.dest):
            if dest.startswith("cuda"):
                yield Case("bam:block", bs, qd, self._threads(bs), pattern, dest)

    def command(self, program: str, case: Case, target: Target, settings: IoSettings) -> list[str]:
        options: dict[str, object] = {
            "gpu": case.dest.partition(":")[2] or 0,
            "threads": case.threads,
            "blk_size": 64,
            "reqs": 1,
            "pages": case.threads,
            "page_size": case.bs_bytes,
            "num_blks": _SPAN_BYTES // case.bs_bytes,
            "queue_depth": max(case.qd, 2),
            "num_queues": _QUEUES,
            "n_ctrls": 1,
            "access_type": 0,  # read; others would write
            "random": str(case.pattern == "random").lower(),
        }
        return [program, *(f"--{name}={value}" for name, value in options.items())]

    def row(self, case: Case, answer: Answer, settings: IoSettings, *, cold: bool) -> Measurement:
        found = _BAM_LINE.search(answer.text)
        if found is None or int(found["ops"]) == 0 or float(found["us"]) == 0:
            raise MeasurementFailed(f"nvm-block-bench's answer is not understood: {answer.text.strip()[-200:]!r}")
        elapsed_s = float(found["us"]) / 1e6
        return case.measured(
            int(found["ops"]),
            elapsed_s,
            answer.cpu_s,
            qd=case.qd * _QUEUES,
            cold=True,
            gpu_threads=case.threads,
            path_taken=f"BaM, {_QUEUES} queues of the GPU, NVMe device",
            note="reads the device from its beginning, not the file; CPU time includes the start",
        )

    def _threads(self, bs_bytes: int) -> int:
        """Return as many threads as blocks fit into 2 GiB of GPU memory, within limits."""
        return min(_THREADS, max(64, (2 << 30) // bs_bytes))


TOOLS: tuple[Tool, ...] = (Fio(), Gdsio(), Spdk(), Bam())


class Installed(NamedTuple):
    """A tool that can run here."""

    tool: Tool
    program: str

    def measure(self, case: Case, target: Target, settings: IoSettings, *, cold: bool) -> Measurement:
        """Run the tool for one case.

        Raises:
            MeasurementFailed: the tool failed, hung, or its answer is not understood.
        """
        command = self.tool.command(self.program, case, target, settings)
        limit_s = settings.warm_up_s + settings.runtime_s + settings.limit_s
        return self.tool.row(case, answer(command, limit_s=limit_s), settings, cold=cold)


def installed(settings: IoSettings, target: Target) -> tuple[dict[str, Installed], list[str]]:
    """Return the requested tools that can run here, and a remark for each other one that says why not."""
    found: dict[str, Installed] = {}
    remarks: list[str] = []
    for tool in TOOLS:
        if tool.name not in settings.external:
            continue
        program = next(filter(None, map(shutil.which, tool.programs)), None)
        if program is None:
            remarks.append(f"{tool.name} is not run: {tool.programs[0]} is not installed")
        elif refusal := tool.refusal(target):
            remarks.append(f"{tool.name} is not run: {refusal}")
        elif not any(tool.cases(settings)):
            remarks.append(
                f"{tool.name} is not run: it has nothing to measure for --dest {', '.join(settings.dest)}"
            )
        else:
            found[tool.name] = Installed(tool, program)
    return found, remarks
