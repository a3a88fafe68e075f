"""What trainers with parts of one feed cost: rows loaded, and images a second, against feeds of their own.

python -m benchmarks selecting --json benchmarks/results/selecting.json [--data FOLDER] [--before SRC]

``--before`` is the ``src`` folder of a Penstock without ``select=``, against which hand-over is timed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from benchmarks.claim import JpegFolder, ResultsFile, claim, report

import penstock
from penstock.bench.demo_images import cached_images

SAMPLES = 2048
EPOCHS = 3
BATCH = 32
CORES = 2

HAND_OVER = """
import sys, threading, time
import numpy as np, penstock
source = penstock.ArraySource({"x": np.zeros((65_536, 256), np.uint8)}, batch_size=128, shuffle=False)
feeder = penstock.Feeder(source, "hand-over", window="64MiB")
threading.Thread(target=feeder.run, daemon=True).start()
with penstock.attach("hand-over", 128) as loader:
    list(loader)
    best, taken = 1e9, 0
    for _ in range(12):
        began, batches = time.process_time(), 0
        for _ in loader:
            batches += 1
        best = min(best, (time.process_time() - began) / batches)
feeder.close()
print(best * 1e6)
"""
"""CPU time of a batch, in microseconds: feeder and trainer in one process, the best of 12 epochs."""


def part_of(seed: int, share: float) -> list[int]:
    """A part of the samples; parts of one seed hold each other."""
    return np.random.default_rng(seed).permutation(SAMPLES)[: round(SAMPLES * share)].tolist()


def make(data: str, workers: int, part: list[int] | None) -> Any:
    import cv2
    from benchmarks.share.jpeg import Jpegs, files_in
    from torch.utils.data import DataLoader, Dataset

    class Images(Jpegs, Dataset[Any]):
        pass

    cv2.setNumThreads(0)
    images = Images(files_in(data), SAMPLES)
    chosen: dict[str, Any] = {"shuffle": True}
    if part is not None:
        chosen = {"sampler": penstock.SelectionSampler(part)}
    return DataLoader(images, BATCH, num_workers=workers, **chosen)


def train(order: dict[str, Any]) -> None:
    """Read as this order says, and print when and how much."""
    part = None if order["part"] is None else part_of(*order["part"])
    loader = penstock.share(
        partial(make, order["data"], order["workers"], part if order["own"] else None),
        order["name"],
        select=None if order["own"] else part,
        expect=order["expect"],
        linger=20,
    )
    with loader:
        samples, began_s = 0, 0.0
        for _ in range(EPOCHS):
            for batch, _ in loader:
                began_s = began_s or time.monotonic()
                samples += len(batch)
        print(json.dumps({"began_s": began_s, "ended_s": time.monotonic(), "samples": samples}))


def run(data: str, parts: list[tuple[int, float] | None], *, own: bool) -> tuple[list[float], float, int]:
    """Train on these parts at once; return images a second of each and of all, and the rows loaded."""
    names = [f"selecting {i}" if own else "selecting" for i in range(len(parts))]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.selecting", json.dumps(order)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for order in (
            {
                "data": data,
                "name": name,
                "part": part,
                "own": own,
                "workers": max(1, CORES // len(parts)) if own else CORES,
                "expect": 1 if own else len(parts),
            }
            for name, part in zip(names, parts, strict=True)
        )
    ]
    found = [json.loads(process.communicate()[0]) for process in processes]
    loaded = sum(feed.samples for feed in penstock.feeds() if feed.name in names)
    for name in set(names):
        penstock.stop(name)
    while any(feed.name in names for feed in penstock.feeds()):
        time.sleep(0.05)
    each = [one["samples"] / (one["ended_s"] - one["began_s"]) for one in found]
    whole_s = max(one["ended_s"] for one in found) - min(one["began_s"] for one in found)
    return each, sum(one["samples"] for one in found) / whole_s, loaded


def hand_over_us(src: Path) -> float:
    environment = {**os.environ, "PYTHONPATH": str(src), "OMP_NUM_THREADS": "1"}
    return float(subprocess.check_output([sys.executable, "-c", HAND_OVER], env=environment, text=True))


def main(
    data: JpegFolder = None,
    file: ResultsFile = None,
    before: Annotated[
        Path | None, typer.Option(help="src of the Penstock against which hand-over is timed.")
    ] = None,
    repeats: int = 5,
) -> None:
    images = str((data or cached_images()).resolve())
    halves: list[Any] = [(seed, 0.5) for seed in range(4)]
    figures: dict[str, list[float]] = {name: [] for name in ("halves", "rows", "nested", "others", "hand-over")}
    raw: dict[str, list[Any]] = {"halves": [], "nested": [], "beside a tenth": [], "hand-over": []}
    for repeat in range(repeats):
        turns = {own: run(images, halves, own=own) for own in ((False, True) if repeat % 2 else (True, False))}
        raw["halves"].append(turns)
        figures["halves"].append(turns[False][1] / turns[True][1])
        figures["rows"].append(turns[False][2] / turns[True][2])
        nested = run(images, [(0, 0.25), (0, 0.5), (0, 1.0)], own=False)
        raw["nested"].append(nested)
        figures["nested"].append(nested[2] / (1.75 * SAMPLES * EPOCHS))
        tenth: dict[str, float] = {}
        for with_it in (False, True) if repeat % 2 else (True, False):
            each, _, _ = run(images, [None, None, *([(5, 0.1)] * with_it)], own=False)
            tenth["with" if with_it else "without"] = sum(each[:2])
        raw["beside a tenth"].append(tenth)
        figures["others"].append(tenth["with"] / tenth["without"])
        print({name: round(values[-1], 3) for name, values in figures.items() if values}, flush=True)
    if before:
        now = Path(penstock.__file__).parents[1]
        for repeat in range(4 * repeats):
            sides = (now, before) if repeat % 2 else (before, now)
            took = {side: hand_over_us(side) for side in sides}
            raw["hand-over"].append({"now_us": took[now], "before_us": took[before]})
            figures["hand-over"].append(took[now] / took[before])
    claims = [
        claim(
            "four trainers with random halves of one feed: rows loaded, of those of four feeds",
            "",
            figures["rows"],
            most=0.48,
        ),
        claim("the same: images a second together, against four feeds", "x", figures["halves"], least=1.9),
        claim(
            "trainers with 25, 50 and 100% of a feed: rows loaded, of those of three feeds",
            "",
            figures["nested"],
            most=0.58,
        ),
        claim(
            "two trainers that take all, beside one with 10%: their speed, of that without it",
            "",
            figures["others"],
            least=0.97,
        ),
    ]
    if figures["hand-over"]:
        claims.append(
            claim(
                "CPU time of a batch handed over without select=, of that before",
                "",
                figures["hand-over"],
                most=1.02,
            )
        )
    report(claims, file, raw=raw)


if __name__ == "__main__":
    train(json.loads(sys.argv[1]))
