"""Compares a packed data set fed to one trainer with plain reads of its rows by that reader.

python -m benchmarks packed --folder /a/folder/on/the/disk --json benchmarks/results/packed-NAME.json

Both read random rows of one file in turn, with equal depth and for equal times;
the file should be larger than what a case reads, so that each row's checksum is
compared. ``posix`` starts with the file out of the page cache.
"""

from __future__ import annotations

import json
import mmap
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from benchmarks.children import ENVIRONMENT, command
from benchmarks.claim import ResultsFile
from benchmarks.measure.pool import ProcessPool
from benchmarks.measure.rates import Interval
from benchmarks.share.result import Result, measure
from benchmarks.share.trainers import start_trainers
from rich.console import Console
from rich.progress import track
from rich.table import Table

from penstock.bench.io import dropped
from penstock.bench.io_child import measure as read_over_and_over
from penstock.bench.io_child import places, stride
from penstock.contracts import Cursor, SourceBlock
from penstock.io.files import file_system
from penstock.io.open import open_reader
from penstock.io.reader import host_memory
from penstock.memory.host_ring import WritableHostRing
from penstock.runs.machine import describe
from penstock.sources.packed.format import HEADER_BYTES
from penstock.sources.packed.packing import pack

ARMS = ("raw", "raw, huge pages", "packed", "packed, no checksums")
FEED = "packed"
BATCH = 64
WARM_UP = 8
THREADS = 8  # of readers that use threads


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One case."""

    reader: str
    arm: str
    repeat: int
    mb_s: float  # 10^6 bytes of rows per second that reach the trainer or, in plain reads, memory
    cpu_s_per_gb: float  # CPU time of the reading process; a feeder's includes sharing
    path_taken: str = ""  # what carried the bytes, as the reader says


class RandomRows:
    """A source of rows of random bytes, and their numbers."""

    description = "random rows"
    segment_starts = (0,)
    seekable = True
    batch_size = BATCH

    def __init__(self, rows: int, row_bytes: int) -> None:
        self.samples = rows
        self.batches = -(-rows // BATCH)
        self._row_bytes = row_bytes

    def open(self, at: Cursor) -> Iterator[SourceBlock]:
        for sample in range(at.sample // BATCH * BATCH, self.samples, BATCH):
            rows = min(BATCH, self.samples - sample)
            images = np.random.default_rng(sample).integers(0, 256, (rows, self._row_bytes), np.uint8)
            yield SourceBlock(sample, rows, (images, np.arange(sample, sample + rows)))

    def close(self) -> None:
        """There is nothing to release."""


def raw(
    path: Path, row_bytes: int, reader_name: str, arm: str, depth: int, repeat: int, seconds: float
) -> Measured:
    """Read random rows into memory like the ring's, or on huge pages, and do nothing else."""
    ring = WritableHostRing.create(-(-depth * stride(row_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE)
    memory = (
        host_memory(ring.capacity_bytes) if arm == "raw, huge pages" else ring.writable(0, ring.capacity_bytes)
    )
    memory[:] = 0
    reader = open_reader(reader_name, memory, depth=depth, threads=THREADS)
    file, nbytes = reader.open(str(path))
    offsets = HEADER_BYTES + places(nbytes - HEADER_BYTES, row_bytes, "random", repeat)
    threads = 0 if reader_name == "uring" else THREADS
    ops, elapsed_s, cpu_s = read_over_and_over(
        reader, file, offsets, row_bytes, threads=threads, once=False, runtime_s=seconds, warm_up_s=0.3
    )
    gb = ops * row_bytes / 1e9
    path_taken = reader.path_taken
    reader.completed(depth)
    reader.close()
    ring.close()
    return Measured(
        reader=reader_name,
        arm=arm,
        repeat=repeat,
        mb_s=1000 * gb / elapsed_s,
        cpu_s_per_gb=cpu_s / gb,
        path_taken=path_taken,
    )


def fed(
    pool: ProcessPool, folder: Path, row_bytes: int, reader: str, arm: str, depth: int, repeat: int, seconds: float
) -> Measured:
    """Read random rows through ``penstock feed``, as one trainer gets them."""
    words = ["feed", f"packed:{folder}", "--name", FEED, "--reader", reader, "--depth", str(depth)]
    words += ["--batch-size", str(BATCH), "--window", "1GiB", "--seed", str(repeat)]
    words += ["--no-verify"] if arm == "packed, no checksums" else []
    (feeder,) = pool.start(command("penstock", *words), environment=ENVIRONMENT)
    (trainer,) = start_trainers(pool, 1)
    order: dict[str, Any] = {"kind": "feed", "feed": FEED, "borrow": True}
    result = measure(
        Result("packed", arm, 1, repeat, finished=False),
        [trainer],
        order,
        Interval(seconds, WARM_UP),
        [feeder.pid],
    )
    pool.dismiss([trainer])
    pool.dismiss([feeder], kill=True)
    return Measured(
        reader=reader,
        arm=arm,
        repeat=repeat,
        mb_s=result.slowest * row_bytes / 1e6,
        cpu_s_per_gb=result.feeder_cpu_s / 1000 / row_bytes * 1e9,
    )


def main(
    folder: Annotated[Path, typer.Option(help="Folder for the data set, on the disk to be measured.")],
    gigabytes: Annotated[float, typer.Option(help="Size of the data set; it is removed in the end.")] = 16.0,
    row_bytes: Annotated[int, typer.Option(help="Size of a row; 150528 is an image of 224 x 224 x 3.")] = 150_528,
    readers: Annotated[str, typer.Option(help="Readers, with commas.")] = "uring,direct,posix",
    depth: Annotated[int, typer.Option(help="Reads under way at once.")] = 128,
    seconds: Annotated[float, typer.Option(help="Time counted for each case.")] = 5.0,
    repeats: Annotated[int, typer.Option(help="Measurements of each case, in turn.")] = 5,
    json_path: ResultsFile = None,
) -> None:
    machine = describe()
    found: list[Measured] = []
    with tempfile.TemporaryDirectory(dir=folder) as place, ProcessPool(Path(place)) as pool:
        packed = Path(place) / "packed"
        file = packed / pack(RandomRows(int(gigabytes * 1e9 / row_bytes), row_bytes), packed).leaves[0].file
        cases = list(product(range(repeats), readers.split(","), range(len(ARMS))))
        for repeat, reader, turn in track(cases, "measuring"):
            arm = ARMS[(repeat + turn) % len(ARMS)]  # so that no case always comes first
            dropped(str(file), file.stat().st_size)
            if arm.startswith("raw"):
                found.append(raw(file, row_bytes, reader, arm, depth, repeat, seconds))
            else:
                found.append(fed(pool, packed, row_bytes, reader, arm, depth, repeat, seconds))
        kind = file_system(str(file))
    Console().print(table(found))
    if json_path is not None:
        pages = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled").read_text().strip()
        report = {
            "benchmark": "packed",
            "machine": machine,
            "file_system": kind,
            "shmem_enabled": pages,
            "gigabytes": gigabytes,
        }
        report |= {"row_bytes": row_bytes, "depth": depth, "seconds": seconds, "batch": BATCH, "measured": found}
        json_path.write_text(json.dumps(msgspec.to_builtins(report), indent=1))


def table(found: list[Measured]) -> Table:
    shown = Table("reader", "what", "MB/s", "of raw", "CPU, s/GB")
    for reader, arm in dict.fromkeys((one.reader, one.arm) for one in found):
        mine = [one for one in found if (one.reader, one.arm) == (reader, arm)]
        plain = [one for one in found if (one.reader, one.arm) == (reader, "raw")]
        ratio = median(one.mb_s / other.mb_s for one, other in zip(mine, plain, strict=True))
        cpu = median(one.cpu_s_per_gb for one in mine)
        shown.add_row(reader, arm, f"{median(one.mb_s for one in mine):,.0f}", f"{ratio:.2f}", f"{cpu:.2f}")
    return shown
