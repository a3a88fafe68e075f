"""Images/s of ImageSource with and without a GPU that decodes beside its workers, on 2, 4 and 16 cores.

python -m benchmarks.gpu.split OUT.json [FOLDER_OF_JPEGS]

A measurement is a process of its own on so many processors, as many workers, and a loop that only takes blocks.
The last one has a training on the GPU beside it, and one that is paused for a while tells what that loses.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil
from benchmarks.gpu.beside import Other, cpus, fastest
from benchmarks.gpu.record import ROOT

CORES = (4, 2, 16)
SECONDS = 7.0
_WARM_S = 25.0
_MOST_S = 60.0


def measure(folder: Path, workers: int, gpu: str) -> dict[str, Any]:
    """Take blocks for some seconds; return the rate, what that cost, and what each side did."""
    import penstock
    from penstock.contracts import Cursor

    source = penstock.ImageSource(
        folder, batch_size=128, workers=workers, **({"gpu": "auto"} if gpu == "auto" else {})
    )
    me = psutil.Process()

    def cpu_s() -> float:
        times = [each.cpu_times() for each in (me, *me.children(recursive=True))]
        return sum(each.user + each.system for each in times)

    began, rows, first, since = time.monotonic(), 0, 0.0, 0.0
    with closing(source):
        for number in range(10**6):
            with closing(source.open(Cursor(number, 0))) as blocks:
                for block in blocks:
                    now = time.monotonic()
                    standing = source._blocks.beside
                    if not since and (
                        now - began > _WARM_S or standing is None or standing.lost or source._caching.sides.part
                    ):
                        since, first, rows = now, cpu_s(), -block.rows
                    rows += block.rows
                    if since and now - since >= SECONDS:
                        sides = source._caching.sides._asdict() | (standing._asdict() if standing else {})
                        cost = 1000 * (cpu_s() - first) / rows
                        return {"images/s": rows / (now - since), "CPU-s/1,000": cost, "sides": sides}
    raise AssertionError("a feed has no end")


def child(folder: Path, cores: int, gpu: str) -> dict[str, Any]:
    """Measure in a process of its own, on so many processors."""
    command = [sys.executable, "-m", "benchmarks.gpu.split", "measure", str(folder), str(cores), gpu]
    on, environment = cpus(cores), {**os.environ, **fastest()}
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            timeout=_MOST_S,
            check=True,
            preexec_fn=lambda: os.sched_setaffinity(0, on),
        )
        return json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def main(out: Path, given: Path) -> None:
    """Measure all, and write what is known after each measurement."""
    found: dict[str, Any] = {}

    def keep(name: str, value: Any) -> None:
        found[name] = value
        out.write_text(json.dumps(found, indent=1))
        print(name, value, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder) / "images"
        images.mkdir()
        for number, each in zip(range(3200), cycle(sorted(given.glob("*.jpg"))), strict=False):
            (images / f"{number:04}.jpg").symlink_to(each.resolve())
        for cores in CORES:
            if cores > len(os.sched_getaffinity(0)):
                keep(f"{cores} cores", "this machine has fewer")
                continue
            for gpu in ("none", "auto"):
                keep(f"{cores} cores, gpu {gpu}", child(images, cores, gpu))
        with Other(cpus(2, last=True), "train", "cuda").ready() as training:
            for name, gpu in (("alone", ""), ("beside", "auto")):
                began = time.monotonic()
                beside = child(images, CORES[0], gpu) if gpu else time.sleep(SECONDS)
                rate = training.rate(time.monotonic() - SECONDS if gpu else began, time.monotonic())
                keep(f"a training {name}", {"images/s": rate, "the feed": beside})


if __name__ == "__main__":
    if sys.argv[1] == "measure":
        print(json.dumps(measure(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])))
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2:] else ROOT / ".spike" / "jpegs")
