"""One GPU, several trainers: a loader each, one feed (ring on the host or the GPU), or TensorSocket.

python -m benchmarks gpu --data FOLDER_OF_JPEGS --json benchmarks/results/share-gpu-NAME.json

Workloads: blocks that lie ready in memory, to measure moving them; a JPEG loader
with all cores; and training a ResNet-18 on its images. With --device cpu it runs
on a fake GPU, to try the script.
"""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
import typer
from benchmarks.children import ROOT
from benchmarks.claim import ResultsFile
from benchmarks.gpu.claims import gpu_claims
from benchmarks.gpu.mps import mps_daemon
from benchmarks.gpu.run import ARMS, Measured, Settings, cases, run
from benchmarks.gpu.table import gpu_table
from benchmarks.measure.pool import ProcessPool
from benchmarks.share import jpeg
from benchmarks.share.tables import claims_table
from benchmarks.share.workload import Workload, jpegs, synthetic
from rich.console import Console
from rich.progress import Progress

from penstock.runs.machine import describe


def main(
    device: Annotated[str, typer.Option(help="The GPU; cpu tries the script out.")] = "cuda:0",
    trainers: Annotated[str, typer.Option(help="Numbers of trainers, one per case.")] = "1,2,4,8",
    blocks: Annotated[str, typer.Option(help="Sizes of blocks from memory; empty for none.")] = "10MB,100MB",
    data: Annotated[Path | None, typer.Option(help="Folder of JPEGs; without it, some are generated.")] = None,
    with_jpeg: Annotated[bool, typer.Option("--jpeg/--no-jpeg", help="Measure the JPEG loader.")] = True,
    only: Annotated[str, typer.Option(help="read or train: only that, of a batch's two works.")] = "",
    arms: Annotated[str, typer.Option(help="What feeds, in order; arm:K: only so many.")] = ",".join(ARMS),
    cores: Annotated[int, typer.Option(help="CPUs for everything, whole cores of them; 0 for all.")] = 0,
    mps: Annotated[bool, typer.Option(help="All processes are clients of an MPS daemon of their own.")] = False,
    workers: Annotated[int, typer.Option(help="Loader workers in total; 0 for one a core.")] = 0,
    width: Annotated[int, typer.Option(help="Channels of the ResNet's first layer; 64 is ResNet-18's.")] = 64,
    warm_up: Annotated[int, typer.Option(help="Batches of images that each trainer takes to warm up.")] = 6,
    seconds: Annotated[float, typer.Option(help="Time counted for each case.")] = 5.0,
    repeats: Annotated[int, typer.Option(help="Measurements of each case, in turn.")] = 5,
    again: Annotated[str, typer.Option(help="Arms that repeats measure, with the most trainers.")] = "",
    window: Annotated[str, typer.Option(help="Size of each feed's ring.")] = "1GiB",
    json_path: ResultsFile = None,
) -> None:
    report: dict[str, Any] = {"benchmark": "share_gpu", "version": 3, "machine": describe()}
    cpus = whole_cores(cores or len(os.sched_getaffinity(0)))
    os.sched_setaffinity(0, cpus)
    numbers = tuple(map(int, trainers.split(",")))
    settings = Settings(device, numbers, repeats, seconds, workers or len(cpus), window, width, (20, warm_up))
    repeated = tuple(filter(None, again.split(",")))
    settings = msgspec.structs.replace(settings, cpus=tuple(cpus), mps=mps, again=repeated)
    sizes = [size for size in blocks.split(",") if size]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if mps:  # before anything here uses the GPU
            os.environ |= stack.enter_context(mps_daemon())
        progress = stack.enter_context(Progress(transient=True))
        workloads = [synthetic(size, settings.workers) for size in sizes]
        if with_jpeg:
            workloads.append(jpegs(str(data or generated()), settings.workers))
        planned = cases(workloads, settings, arms.split(","), only)
        task = progress.add_task("starting", total=len(planned))
        report |= {"settings": settings, "gpu": None if device == "cpu" else torch.cuda.get_device_name(device)}
        report |= {"cuda": torch.version.cuda, "data": described(workloads)}

        def keep(**more: Any) -> None:
            report.update(more)
            if json_path is not None:
                json_path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")

        def tell(found: list[Measured], what: str) -> None:
            progress.update(task, completed=len(found), description=what)
            keep(measured=found)

        with ProcessPool(folder) as pool:
            found = run(pool, planned, settings, tell)
    rows = gpu_claims(found)
    keep(claims=rows)
    Console().print(gpu_table(found), claims_table(rows))


def whole_cores(count: int) -> list[int]:
    """Return so many of this process's CPUs, those of one core behind each other."""
    cpus = os.sched_getaffinity(0)

    def core(cpu: int) -> tuple[int, int]:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        first = re.match(r"\d+", siblings.read_text()) if siblings.exists() else None
        return int(first[0]) if first else cpu, cpu

    return sorted(cpus, key=core)[:count]


def generated() -> Path:
    """Make a folder of JPEGs, which stays for the next time."""
    made = ROOT / "build" / "gpu-images"
    if not made.exists():
        made.parent.mkdir(exist_ok=True)
        new = Path(tempfile.mkdtemp(dir=made.parent))
        jpeg.generate(str(new), 500)
        new.rename(made)
    return made


def described(workloads: list[Workload]) -> str:
    """Describe the images in a few words, without their path."""
    files = [path for workload in workloads if workload.folder for path in jpeg.files_in(workload.folder)]
    return f"{len(files):,} JPEG files" if files else ""
