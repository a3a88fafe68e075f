"""Compares images in tar shards with the same images in a folder, in an ImageSource alone.

python -m benchmarks records FOLDER --json benchmarks/results/records.json

FOLDER holds JPEGs; each comes several times. All lie in the page cache. Arms take turns.
"""

from __future__ import annotations

import tarfile
import tempfile
import time
from pathlib import Path

from benchmarks.cache import images_per_s, links
from benchmarks.claim import ResultsFile, claim, report

import penstock
from penstock.sources.records.tar import members

COUNT = 8000
SHARDS = 8
REPEATS = 5
BATCH = 128


def packed(folder: Path, to: Path) -> list[Path]:
    """Write the images of a folder into shards as GNU tar does, without pax headers; return these."""
    shards = [to / f"{shard:04}.tar" for shard in range(SHARDS)]
    images = sorted(folder.rglob("*.jpeg"))
    for i, shard in enumerate(shards):
        with tarfile.open(shard, "w", format=tarfile.GNU_FORMAT, dereference=True) as tar:
            for path in images[i::SHARDS]:
                tar.add(path, str(path.relative_to(folder)))
    return shards


def index_us(shards: list[Path]) -> float:
    """Microseconds for each member to walk through shards."""
    began = time.perf_counter()
    count = sum(1 for shard in shards for _ in members(shard))
    return 1e6 * (time.perf_counter() - began) / count


def main(folder: Path, file: ResultsFile = None) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        linked = Path(scratch) / "folder"
        links(folder, linked, COUNT)
        shards = packed(linked, Path(scratch))
        sources = {
            "folder": penstock.ImageSource(linked, batch_size=BATCH, suffixes=(".jpeg",)),
            "tar": penstock.ImageSource(shards, batch_size=BATCH, suffixes=(".jpeg",)),
        }
        rates: dict[str, list[float]] = {name: [] for name in sources}
        for turn in range(REPEATS + 1):
            for name, source in sources.items():
                rate = images_per_s(source, turn)
                if turn:  # the first one read the files into the page cache
                    rates[name].append(rate)
            print(f"{turn} of {REPEATS}: { ({name: round(found[-1]) for name, found in rates.items() if found}) }")
        walked = [index_us(shards) for _ in range(REPEATS)]
        for source in sources.values():
            source.close()
    ratios = [tar / one for tar, one in zip(rates["tar"], rates["folder"], strict=True)]
    claims = [
        claim("images/s from tar shards, against the same images in a folder", "x", ratios, least=0.95),
        claim("index of a tar, a member", "us", walked, most=8),
    ]
    report(claims, file, images_per_s=rates)
