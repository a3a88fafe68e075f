"""gdsio, NVIDIA's benchmark of GPUDirect Storage: GPUDirect Storage Benchmarking and Configuration Guide."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import product

from penstock.bench.io.plan import Case, Settings
from penstock.bench.io.processes import Answer, MeasurementFailed
from penstock.bench.io.target import Target
from penstock.io.advice.measurements import Measurement

_TRANSFERS = {"GPUD": 0, "CPUONLY": 1, "CPU_GPU": 2}
_LINE = re.compile(
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

    def cases(self, settings: Settings) -> Iterator[Case]:
        for bs, pattern, dest, threads in product(
            settings.bs_bytes, settings.pattern, settings.dest, settings.threads
        ):
            if bs % 4096 or dest == "pinned":
                continue
            for transfer in ("GPUD", "CPU_GPU") if dest.startswith("cuda") else ("CPUONLY",):
                # Each thread has one read under way.
                yield Case(f"gdsio:{transfer}", bs, threads, threads, pattern, dest)

    def command(self, program: str, case: Case, target: Target, settings: Settings) -> list[str]:
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

    def row(self, case: Case, answer: Answer, settings: Settings, *, cold: bool) -> Measurement:
        found = _LINE.search(answer.text)
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
