"""One GPU, several trainers: a loader each, one feed (ring on the host or the GPU), or TensorSocket.

python -m benchmarks.gpu --data FOLDER_OF_JPEGS --json benchmarks/results/share-gpu-NAME.json

Workloads: blocks that lie ready in memory, to measure moving them; a JPEG loader
with all cores; and training a ResNet-18 on its images. With --device cpu it runs
on a fake GPU, to try the script.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
import typer
from benchmarks.children import ENVIRONMENT, command
from benchmarks.gpu.claims import gpu_claims
from benchmarks.gpu.run import Settings, cases, run
from benchmarks.gpu.table import gpu_table
from benchmarks.share import jpeg
from benchmarks.share.tables import claims_table
from benchmarks.share.workload import Workload, jpegs, synthetic
from rich.console import Console
from rich.progress import Progress

from penstock.bench.measure.pool import ProcessPool
from penstock.errors import PenstockError
from penstock.feed.settings import bytes_from
from penstock.runs.machine import describe


def main(
    device: Annotated[str, typer.Option(help="The GPU; cpu tries the script out.")] = "cuda:0",
    trainers: Annotated[str, typer.Option(help="Numbers of trainers, one per case.")] = "1,2,4,8",
    blocks: Annotated[str, typer.Option(help="Sizes of blocks from memory; empty for none.")] = "10MB,100MB",
    data: Annotated[Path | None, typer.Option(help="Folder of JPEGs; without it, some are generated.")] = None,
    with_jpeg: Annotated[bool, typer.Option("--jpeg/--no-jpeg", help="Measure the JPEG loader.")] = True,
    train: Annotated[bool, typer.Option(help="Train a ResNet-18 on its images too.")] = True,
    peers: Annotated[bool, typer.Option(help="Measure TensorSocket too, where it is installed.")] = True,
    workers: Annotated[int, typer.Option(help="Loader workers in total; 0 for one a core.")] = 0,
    width: Annotated[int, typer.Option(help="Channels of the ResNet's first layer; 64 is ResNet-18's.")] = 64,
    warm_up: Annotated[int, typer.Option(help="Batches of images that each trainer takes to warm up.")] = 6,
    seconds: Annotated[float, typer.Option(help="Time counted for each case.")] = 5.0,
    repeats: Annotated[int, typer.Option(help="Measurements of each case, in turn.")] = 5,
    window: Annotated[str, typer.Option(help="Size of each feed's ring.")] = "1GiB",
    json_path: Annotated[Path | None, typer.Option("--json", help="File for the results.")] = None,
) -> None:
    machine = describe()
    cores = len(os.sched_getaffinity(0))
    numbers = tuple(map(int, trainers.split(",")))
    settings = Settings(device, numbers, repeats, seconds, workers or cores, window, width, (20, warm_up))
    sizes = [size for size in blocks.split(",") if size]
    with tempfile.TemporaryDirectory() as folder, Progress(transient=True) as progress:
        workloads = [synthetic(size, settings.workers) for size in sizes]
        if with_jpeg:
            workloads.append(jpegs(str(data or generated(Path(folder))), settings.workers))
        planned = cases(workloads, settings, train=train, peers=peers)
        task = progress.add_task("starting", total=None)

        def tell(done: int, in_all: int, what: str) -> None:
            progress.update(task, completed=done, total=in_all, description=what)

        with ProcessPool(Path(folder)) as pool:
            found = run(pool, planned, settings, tell)
        copy = device_copy(device, [bytes_from(size) for size in sizes], repeats)
        images = described(workloads)
    rows = gpu_claims(found, copy)
    Console().print(gpu_table(found), claims_table(rows))
    if json_path is not None:
        report: dict[str, Any] = {"benchmark": "share_gpu", "version": 2, "machine": machine, "settings": settings}
        report |= {"gpu": None if device == "cpu" else torch.cuda.get_device_name(device)}
        report |= {"cuda": torch.version.cuda, "data": images, "claims": rows}
        report |= {"measured": found, "device_copy": copy}
        json_path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def generated(folder: Path) -> Path:
    """Make a temporary folder of JPEGs."""
    made = folder / "images"
    made.mkdir()
    jpeg.generate(str(made), 1000)
    return made


def described(workloads: list[Workload]) -> str:
    """Describe the images in a few words, without their path."""
    files = [path for workload in workloads if workload.folder for path in jpeg.files_in(workload.folder)]
    return f"{len(files):,} JPEG files" if files else ""


def device_copy(device: str, sizes: list[int], repeats: int) -> list[dict[str, Any]]:
    """Compare the copy from a pinned ring with torch's, in a separate process."""
    if not sizes:
        return []
    devicecopy = command("benchmarks.gpu.devicecopy", device, str(repeats), *map(str, sizes))
    done = subprocess.run(
        devicecopy, capture_output=True, text=True, env={**os.environ, **ENVIRONMENT}, check=False
    )
    if done.returncode:
        raise PenstockError(f"the copy could not be measured: {done.stderr.strip()[-1000:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1])["devicecopy"]


if __name__ == "__main__":
    try:
        typer.run(main)
    except PenstockError as error:
        sys.exit(str(error))
