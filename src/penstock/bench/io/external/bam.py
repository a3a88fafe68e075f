"""nvm-block-bench of BaM, where a GPU's threads read an NVMe device: https://github.com/ZaidQureshi/bam."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from penstock.bench.io.plan import Case, Settings
from penstock.bench.io.processes import Answer, MeasurementFailed
from penstock.bench.io.target import Target
from penstock.io.advice.measurements import Measurement

_DEVICE = Path("/dev/libnvm0")
_THREADS = 1 << 17
_QUEUES = 64
_SPAN_BYTES = 1 << 30
_LINE = re.compile(r"Elapsed Time: (?P<us>[\d.e+]+)\s+Number of Ops: (?P<ops>\d+)\s+Data Size")


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

    def cases(self, settings: Settings) -> Iterator[Case]:
        for bs, qd, pattern, dest in product(settings.bs_bytes, settings.qd, settings.pattern, settings.dest):
            if dest.startswith("cuda"):
                yield Case("bam:block", bs, qd, self._threads(bs), pattern, dest)

    def command(self, program: str, case: Case, target: Target, settings: Settings) -> list[str]:
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

    def row(self, case: Case, answer: Answer, settings: Settings, *, cold: bool) -> Measurement:
        found = _LINE.search(answer.text)
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
