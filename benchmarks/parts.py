"""Compares blocks that two workers make in parts with blocks that one worker makes each, in an ImageSource alone.

python -m benchmarks parts FOLDER --json benchmarks/results/gpu-path.json

FOLDER holds JPEGs; each comes several times. All lie in the page cache. Arms take turns.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from pathlib import Path

from benchmarks.cache import links
from benchmarks.claim import ResultsFile, claim, report
from msgspec.structs import replace

import penstock
from penstock.contracts import Cursor

COUNT = 4000
REPEATS = 7
BATCH = 128
WORKERS = 2


def cycle_s(source: penstock.ImageSource, cycle: int) -> tuple[float, float]:
    """Seconds from the beginning of a cycle to its first block, and to its end, by workers that are there."""
    began = time.perf_counter()
    with closing(source.open(Cursor(cycle, 0))) as blocks:
        next(blocks)
        first_s = time.perf_counter() - began
        for _ in blocks:
            pass
    return first_s, time.perf_counter() - began


def main(folder: Path, file: ResultsFile = None) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        linked = Path(scratch) / "folder"
        links(folder, linked, COUNT)
        sources = {
            name: penstock.ImageSource(linked, batch_size=BATCH, workers=WORKERS, suffixes=(".jpeg",))
            for name in ("whole", "parts")
        }
        its = sources["whole"]._blocks
        its._recipe = replace(its._recipe, part_rows=0)
        rates: dict[str, list[float]] = {name: [] for name in sources}
        first_s: dict[str, list[float]] = {name: [] for name in sources}
        for turn in range(REPEATS + 1):
            for name, source in sources.items():
                to_first_s, all_s = cycle_s(source, turn)
                if turn:  # in the first one workers start, and files come into the page cache
                    rates[name].append(COUNT / all_s)
                    first_s[name].append(to_first_s)
            print(f"{turn} of {REPEATS}: { ({name: round(found[-1]) for name, found in rates.items() if found}) }")
        for source in sources.values():
            source.close()
    pairs, firsts = (zip(found["parts"], found["whole"], strict=True) for found in (rates, first_s))
    claims = [
        claim("images/s of two workers, parts against whole blocks", "x", [a / b for a, b in pairs], least=0.98),
        claim("time to the first block, parts against whole blocks", "x", [a / b for a, b in firsts], most=0.7),
    ]
    report(claims, file, images_per_s=rates, first_block_s=first_s)
