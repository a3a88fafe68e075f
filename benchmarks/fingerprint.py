"""Measures what the fingerprint of a data set costs, the first time and at each iteration.

python -m benchmarks fingerprint --json benchmarks/results/fingerprint.json
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from benchmarks.claim import ResultsFile
from rich.console import Console
from rich.table import Table

from penstock.fingerprint.objects import fingerprint_of_objects, small_state
from penstock.runs.machine import describe

CLASSES = 1000
MOST_FOLDER_S = 3.0
MOST_MEMORY_S = 10.0  # for 10 GB


class Measured(msgspec.Struct, frozen=True):
    """What one data set's fingerprint took: medians, and every repeat."""

    target_s: float  # what the first fingerprint may take
    first_s: float
    first_cpu_s: float  # CPU time of the fingerprint, which is nearer to what it takes on an idle machine
    again_s: float  # time of a second fingerprint in that process
    small_state_s: float  # time of what is run again at each iteration
    repeats: list[float]


class Folder:
    """What torchvision's ``ImageFolder`` holds of so many files."""

    def __init__(self, files: int) -> None:
        self.root = "/data/imagenet/train"
        self.classes = [f"n{i:08d}" for i in range(CLASSES)]
        self.class_to_idx = {name: i for i, name in enumerate(self.classes)}
        names = (
            (i % CLASSES, f"{self.root}/n{i % CLASSES:08d}/n{i % CLASSES:08d}_{i}.JPEG") for i in range(files)
        )
        self.samples = self.imgs = [(path, label) for label, path in names]
        self.targets = [label for _, label in self.samples]


class Memory:
    """Images and labels in memory."""

    def __init__(self, nbytes: int) -> None:
        self.images = np.random.default_rng(0).integers(0, 256, (nbytes // 3072, 32, 32, 3), np.uint8)
        self.labels = np.arange(len(self.images)) % 10


def measured(make: Callable[[], Any], repeats: int, target_s: float) -> Measured:
    first, cpu, again, small = [], [], [], []
    for _ in range(repeats):
        things = {"dataset": make()}
        began, cpu_began = time.perf_counter(), time.process_time()
        one = fingerprint_of_objects(things)
        first.append(time.perf_counter() - began)
        cpu.append(time.process_time() - cpu_began)
        began = time.perf_counter()
        assert fingerprint_of_objects(things) == one
        again.append(time.perf_counter() - began)
        began = time.perf_counter()
        small_state(things)
        small.append(time.perf_counter() - began)
    return Measured(target_s, median(first), median(cpu), median(again), median(small), first)


def main(
    files: Annotated[int, typer.Option(help="Files of the folder.")] = 1_300_000,
    gigabytes: Annotated[float, typer.Option(help="10^9 bytes of images in memory.")] = 1.0,
    repeats: Annotated[int, typer.Option(help="Measurements of each, on data made anew.")] = 3,
    json: ResultsFile = None,
) -> None:
    """Measure a folder of files and images in memory."""
    machine = describe()
    folder = measured(lambda: Folder(files), repeats, MOST_FOLDER_S)
    memory = measured(lambda: Memory(round(gigabytes * 1e9)), repeats, MOST_MEMORY_S * gigabytes / 10)
    table = Table("", "first s", "CPU s", "again s", "small state ms", "target s", box=None, header_style="dim")
    for name, found in ((f"folder of {files:,} files", folder), (f"{gigabytes:g} GB in memory", memory)):
        figures = (found.first_s, found.first_cpu_s, found.again_s, found.small_state_s * 1e3, found.target_s)
        table.add_row(name, *(f"{figure:.3g}" for figure in figures))
    console = Console(width=120)
    console.print(table)
    if json is not None:
        told = {"machine": machine, "files": files, "gigabytes": gigabytes, "folder": folder, "memory": memory}
        json.write_bytes(msgspec.json.format(msgspec.json.encode(told), indent=1) + b"\n")
        console.print(f"saved: {json}")
