"""Measures a cache of images, in an ImageSource alone.

python -m benchmarks cache FOLDER --json benchmarks/results/cache.json

FOLDER holds JPEGs; each is made to several by links, which a cache takes for different images. A store is a server
on this machine that gives 50 MB/s.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from benchmarks.claim import ResultsFile, claim, report
from rich.console import Console

import penstock
from penstock.contracts import Cursor
from penstock.io.open import open_reader
from penstock.io.reader import host_memory
from penstock.testing.reader import extents_of, read_all

REPEATS = 5
BATCH = 128
STORE_BYTES_PER_S = 50e6
PARTS = (0.5, 0.8, 0.95)
CONSOLE = Console()


def said(text: str) -> None:
    CONSOLE.print(text, highlight=False)


def links(folder: Path, to: Path, count: int) -> int:
    """Fill a folder with links to images; return the bytes of all."""
    images, nbytes = sorted(folder.rglob("*.JPEG")), 0
    for i in range(count):
        path = to / f"{i % 10}" / f"{i:06}.jpeg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(images[i % len(images)])
        nbytes += images[i % len(images)].stat().st_size
    return nbytes


def images_per_s(source: penstock.ImageSource, cycle: int) -> float:
    """Images a second from the first block on."""
    blocks = source.open(Cursor(cycle, 0))
    rows = -next(blocks).rows
    began = time.perf_counter()
    for block in blocks:
        rows += block.rows
    return (rows + BATCH) / (time.perf_counter() - began)


def made(images: Path | str, cache: penstock.Cache | None, **options: Any) -> penstock.ImageSource:
    return penstock.ImageSource(str(images), batch_size=BATCH, suffixes=(".jpeg",), cache=cache, **options)


def from_pixels(
    images: Path, count: int, scratch: Path
) -> tuple[list[float], list[float], dict[str, list[float]]]:
    """Measure later cycles from pixels: in memory against the first cycle, on disk against the disk."""
    rates: dict[str, list[float]] = {"first": [], "memory": [], "disk": [], "disk, GB/s": [], "reader, GB/s": []}
    for turn in range(REPEATS):
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            source = made(images, penstock.Cache(folder, "1MB", memory="8GB", keep="pixels"))
            rates["first"].append(images_per_s(source, 0))
            rates["memory"].append(images_per_s(source, 1))
            source.close()
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            source = made(
                images, penstock.Cache(folder, "500GB", keep="pixels")
            )  # so large that it is read directly
            images_per_s(source, 0)
            os.sync()
            (data,) = Path(folder).glob("*/data")
            rates["disk"].append(images_per_s(source, 1))
            rates["disk, GB/s"].append(rates["disk"][-1] * data.stat().st_size / count / 1e9)
            rates["reader, GB/s"].append(read_rate(data) / 1e9)
            source.close()
        said(f"pixels, turn {turn + 1}: " + ", ".join(f"{name} {found[-1]:,.2f}" for name, found in rates.items()))
    return rates


def read_rate(data: Path) -> float:
    """Bytes a second that a reader alone gets from a file, in pieces as large as pixels, past the page cache."""
    piece, count = 600 << 10, 512
    memory = host_memory(64 * piece)
    offsets = np.random.default_rng(0).integers(0, data.stat().st_size // piece, count) * piece
    reader = open_reader("uring", memory, depth=32)
    file = reader.open(str(data)).file
    began = time.perf_counter()
    to = [i % 64 * piece for i in range(count)]
    read_all(reader, extents_of(file, offsets.tolist(), [piece] * count, to))
    took = time.perf_counter() - began
    reader.close()
    return count * piece / took


def lru_hits(source: penstock.ImageSource, sizes: np.ndarray, room: float) -> list[float]:
    """Part of each cycle that a cache would find which drops what was used longest ago."""
    kept: OrderedDict[int, int] = OrderedDict()
    used, parts = 0.0, []
    for cycle in range(3):
        hits = 0
        for block in source._order.blocks(Cursor(cycle, 0)):
            for image in block[1].tolist():
                if image in kept:
                    kept.move_to_end(image)
                    hits += 1
                    continue
                kept[image] = int(sizes[image])
                used += kept[image]
                while used > room:
                    used -= kept.popitem(last=False)[1]
        parts.append(hits / len(sizes))
    return parts[1:]


def hits_by_cycle(images: Path, nbytes: int, count: int, scratch: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    sizes = np.array([-(-path.stat().st_size // 4096) * 4096 for path in sorted(images.rglob("*.jpeg"))])
    for part in PARTS:
        room = part * (sizes.sum() + 36 * count)
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            # A part of 16 segments each cycle, as for data of more than 256,000 images.
            source = made(images, penstock.Cache(folder, int(room), keep="bytes"), segments=16, size=64)
            before, parts = 0, []
            for cycle in range(4):
                for _ in source.open(Cursor(cycle, 0)):
                    pass
                parts.append((source.cached.hits - before) / count)
                before = source.cached.hits
            found[f"{part:.0%}"] = {"found": parts[1:], "LRU": lru_hits(source, sizes, room)}
            source.close()
        said(f"hits at {part:.0%}: {found[f'{part:.0%}']}")
    return found


@contextmanager
def store(folder: Path, bytes_per_s: float) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.throttled_store", str(folder), str(bytes_per_s)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    os.environ["AWS_ENDPOINT_URL"] = server.stdout.readline().strip()
    os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
    from penstock.sources.records.files import stores

    stores.cache_clear()
    try:
        yield
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def from_a_store(images: Path, nbytes: int, scratch: Path) -> tuple[list[float], dict[str, list[float]]]:
    """Seconds of a cycle with half of the data cached, relative to one with nothing, which is what LRU finds."""
    seconds: dict[str, list[float]] = {"half": [], "LRU": []}
    with store(images, STORE_BYTES_PER_S), tempfile.TemporaryDirectory(dir=scratch) as folder:
        half = made("s3://bucket/", penstock.Cache(folder, nbytes // 2, keep="bytes"))
        none = made("s3://bucket/", None)
        for block in half.open(Cursor(0, 0)):
            del block
        for turn in range(REPEATS):
            for name, source in (("half", half), ("LRU", none)):
                began = time.perf_counter()
                for block in source.open(Cursor(turn + 1, 0)):
                    del block
                seconds[name].append(time.perf_counter() - began)
            said(
                f"store, turn {turn + 1}: "
                + ", ".join(f"{name} {found[-1]:.2f} s" for name, found in seconds.items())
            )
        half.close()
        none.close()
    return [half / none for half, none in zip(seconds["half"], seconds["LRU"], strict=True)], seconds


class Setting(NamedTuple):
    workers: int
    bytes_per_s: float | None
    room: str


def by_choice(images: Path, scratch: Path) -> list[dict[str, Any]]:
    """Images a second of later cycles, for each fixed choice and for what ``keep="auto"`` chose."""
    rows: list[dict[str, Any]] = []
    for setting in map(Setting._make, product((1, 2), (None, 50e6), ("60MB", "200MB", "700MB"))):
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            where: Path | str = images if setting.bytes_per_s is None else "s3://bucket/"
            with store(images, setting.bytes_per_s or 1e12):
                sources: dict[str, penstock.ImageSource] = {}
                for keep in ("bytes", "pixels", "auto"):
                    cache = penstock.Cache(f"{folder}/{keep}", setting.room, keep=keep)
                    sources[keep] = made(where, cache, workers=setting.workers)
                for source in sources.values():
                    for cycle in range(2):
                        images_per_s(source, cycle)
                rates: dict[str, list[float]] = {keep: [] for keep in sources}
                for cycle in range(2, 5):
                    for keep, source in sources.items():
                        rates[keep].append(images_per_s(source, cycle))
                medians = {keep: median(found) for keep, found in rates.items()}
                told = sources["auto"].description
                for source in sources.values():
                    source.close()
        best = max(medians["bytes"], medians["pixels"])
        rows.append({**setting._asdict(), **medians, "of the best": medians["auto"] / best, "told": told})
        said(f"{setting}: {medians}: {medians['auto'] / best:.2f}; {told}")
    return rows


def main(
    folder: Path,
    file: ResultsFile = None,
    scratch: Annotated[Path, typer.Option(help="Folder on a disk.")] = Path("/var/tmp"),
) -> None:
    with tempfile.TemporaryDirectory(dir=scratch) as made:
        scratch = Path(made)
        links(folder, scratch / "4000", 4000)
        nbytes = links(folder, scratch / "8000", 8000)
        few = links(folder, scratch / "1000", 1000)
        rates = from_pixels(scratch / "4000", 4000, scratch)
        hits = hits_by_cycle(scratch / "8000", nbytes, 8000, scratch)
        ratios, seconds = from_a_store(scratch / "1000", few, scratch)
        choices = by_choice(scratch / "1000", scratch)
    memory = [later / first for later, first in zip(rates["memory"], rates["first"], strict=True)]
    disk = [ours / theirs for ours, theirs in zip(rates["disk, GB/s"], rates["reader, GB/s"], strict=True)]
    off = [abs(part - found) for part, of in zip(PARTS, hits.values(), strict=True) for found in of["found"]]
    close = sum(row["of the best"] >= 0.9 for row in choices)
    claims = [
        claim("images from pixels in memory, against the cycle that decodes and keeps them", "x", memory, least=5),
        claim("bytes of pixels from disk, against a reader that does nothing else", "x", disk, least=0.8),
        claim(
            "hits per cycle with room for 50, 80 and 95% of the data: largest deviation from that part",
            "",
            [max(off)],
            most=0.01,
        ),
        claim("store of 50 MB/s, half of the data cached: time of a cycle against LRU", "x", ratios, most=0.55),
        claim("settings of 12 in which keep=auto is within 10% of the best choice", "", [float(close)], least=11),
    ]
    report(claims, file, pixels=rates, hits=hits, store_s=seconds, choices=choices)
