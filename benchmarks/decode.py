"""Measures a far side of images without a GPU: a stand-in that decodes by libjpeg-turbo, in an ImageSource alone.

python -m benchmarks decode FOLDER --before SRC --json benchmarks/results/decode.json

FOLDER holds JPEGs; each comes several times, from the page cache. SRC is the ``src`` of the revision before.
Clocks are simulated, with the real pool between them: rates are images a second, the best split is the best of 13.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import typer
from benchmarks.cache import images_per_s, links
from benchmarks.claim import ResultsFile, claim, report
from rich.console import Console
from tests.fakes import far_side
from tests.fakes.far_side import Behaviour
from tests.sources.images.pictures import turbo_path
from tests.sources.workers.simulated import PARTS, Clock, against_the_best_split

import penstock
from penstock.contracts import Cursor
from penstock.sources.images import gpu
from penstock.sources.images.decoders import DECODER
from penstock.sources.images.turbo import OVERRIDE
from penstock.sources.workers.far import FarSide

COUNT = 4000
REPEATS = 7
WORKERS = 2
PART = 32
KILLS = 100
RATES = (500, 1000, 2000, 4000, 8000)
BATCH_S = 0.004
STEP_S = 5.0
CONSOLE = Console()
ALONE = """
import sys
from benchmarks.cache import images_per_s
import penstock
source = penstock.ImageSource(sys.argv[1], batch_size=128, workers=2, suffixes=(".jpeg",))
images_per_s(source, 0)
print(images_per_s(source, 1))
source.close()
"""


@contextmanager
def made(images: Path, share: float | None = None, **how: Any) -> Iterator[penstock.ImageSource]:
    """Open images beside whose workers the stand-in decodes, as it is told to behave."""
    side = FarSide(far_side.__name__, "the stand-in", share)
    name, value = Behaviour(**how).environment()
    os.environ[name] = value
    with patch.object(gpu, "GPU_SIDE", side), patch.object(gpu, "lacks", str):
        source = penstock.ImageSource(images, batch_size=128, workers=WORKERS, suffixes=(".jpeg",), gpu="auto")
    with closing(source):
        yield source


def alone(images: Path) -> Any:
    return closing(penstock.ImageSource(images, batch_size=128, workers=WORKERS, suffixes=(".jpeg",)))


def beside(images: Path) -> tuple[list[float], float]:
    """Measure the stand-in beside two workers against them alone; return the ratios, and the part that it did."""
    ratios = list[float]()
    with alone(images) as one, made(images) as other:
        for turn in range(REPEATS + 1):
            rates = [images_per_s(each, turn) for each in (one, other)]
            if turn:  # in the first, processes start
                ratios.append(rates[1] / rates[0])
            part = other._caching.sides.part
    return ratios, part


def after(images: Path, stops: Mapping[int, str], scratch: Path) -> list[float]:
    """Seconds of a cycle after a far side was given up, of the workers' alone."""
    ratios = list[float]()
    with alone(images) as one, made(images, 0.5, stops=stops, counter=str(scratch / "batches")) as other:
        for turn in range(REPEATS + 1):
            rates = [images_per_s(each, turn) for each in (one, other)]
            if turn:
                assert other._blocks.beside.lost
                ratios.append(rates[0] / rates[1])
    (scratch / "batches").unlink()
    return ratios


def blocks(source: penstock.ImageSource, at: Cursor, most: int) -> list[Any]:
    found = list[Any]()
    with closing(source.open(at)) as its:
        for block in its:
            tree = block.tree if isinstance(block.tree, tuple) else (block.tree,)
            found.append((block.sample, [leaf.copy() for leaf in tree]))
            if len(found) == most:
                break
    return found


def fixed_share(images: Path) -> float:
    """Kill the far side, and resume anywhere, so many times; return the part of blocks that were bit for bit."""
    draw, right, count = random.Random(0), 0, 0
    with alone(images) as source:
        expected = blocks(source, Cursor(0, 0), 10**6)
    for _ in range(KILLS):
        with made(images, 0.5) as source:
            first = draw.randrange(len(expected) - 4)
            its = source.open(Cursor(0, expected[first][0]))
            with closing(its):
                for number in range(4):
                    found = next(its)
                    same = all(map(np.array_equal, found.tree, expected[first + number][1]))
                    right, count = right + same, count + 1
                    if number == 0 and (worker := source._blocks._pool.far.worker) is not None:
                        os.kill(worker.pid, signal.SIGKILL)
    return right / count


def clocks() -> tuple[dict[str, float], dict[str, float]]:
    """Time against the best fixed split, by rates, and by rates that step to four times and to a quarter."""

    def of(worker: Callable[[float], float], far: Callable[[float], float], seconds: float) -> float:
        blocks = max(100, int((WORKERS * worker(0) + far(0)) * seconds / PARTS))
        return against_the_best_split(partial(Clock, worker, far, BATCH_S), blocks)

    def steady(rate: float) -> Callable[[float], float]:
        return lambda _: rate

    def stepping(rate: float) -> Callable[[float], float]:
        return lambda now_s: rate * (1, 4, 1, 0.25)[int(now_s / STEP_S) % 4]

    still = dict[str, float]()
    for workers in RATES:
        for far in RATES:
            given = steady(workers / WORKERS / PART), steady(far / PART)
            still[f"workers {workers}, far side {far}"] = of(*given, 10.0)
    steps = dict[str, float]()
    for far in RATES[1::2]:
        workers_of, far_of = 500 / WORKERS / PART, far / PART
        steps[f"far side {far} steps"] = of(steady(workers_of), stepping(far_of), 40.0)
        steps[f"workers 500 step, far side {far}"] = of(stepping(workers_of), steady(far_of), 40.0)
    return still, steps


def not_asked_for(images: Path, before: Path) -> list[float]:
    """Images a second where no far side is asked for, against the revision before."""
    ratios = list[float]()
    for _ in range(REPEATS):
        rates = list[float]()
        for source in (Path("src").resolve(), before):
            environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{Path.cwd()}"}
            command = [sys.executable, "-c", ALONE, str(images)]
            rates.append(float(subprocess.run(command, env=environment, check=True, capture_output=True).stdout))
        ratios.append(rates[0] / rates[1])
    return ratios


def main(
    folder: Path,
    file: ResultsFile = None,
    before: Annotated[Path | None, typer.Option(help="src of the revision before.")] = None,
) -> None:
    began = time.monotonic()
    still, steps = clocks()
    CONSOLE.print(f"clocks: worst {max(still.values()):.3f}, with steps {max(steps.values()):.3f}")
    claims = [
        claim(
            "time against the best fixed split, the worst of 5 x 5 rates", "x", [max(still.values())], most=1.05
        ),
        claim("the same while rates step, the worst of four", "x", [max(steps.values())], most=1.05),
    ]
    shares, rates = dict[str, float](), dict[str, list[float]]()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        images = Path(scratch) / "images"
        links(folder, images, COUNT)
        regions = {OVERRIDE: str(turbo_path()), DECODER: "libjpeg-turbo"}
        for name, environment in {"whole images": {DECODER: "simplejpeg"}, "regions": regions}.items():
            with patch.dict(os.environ, environment):
                rates[name], shares[name] = ratios, _ = beside(images)
            if name == "whole images":
                what = "images/s of the stand-in beside two workers that decode as it does, against them alone"
                claims.append(claim(what, "x", ratios, least=0.95))
            CONSOLE.print(f"{name}: {[round(each, 3) for each in ratios]}, {time.monotonic() - began:.0f} s")
        os.environ[DECODER] = "simplejpeg"
        for name, stops in {"dies": {1: "KILL", 2: "KILL"}, "hangs": {1: "STOP"}}.items():
            ratios = after(images, stops, Path(scratch))
            claims.append(claim(f"time after a far side that {name} was given up", "x", ratios, most=1.02))
            CONSOLE.print(f"{name}: {[round(each, 3) for each in ratios]}, {time.monotonic() - began:.0f} s")
        right = fixed_share(images)
        claims.append(claim(f"blocks of a fixed share, bit for bit after {KILLS} kills", "x", [right], least=1.0))
        if before is not None:
            ratios = not_asked_for(images, before.resolve())
            claims.append(
                claim("images/s where no far side is asked for, against before", "x", ratios, least=0.98)
            )
    report(claims, file, clocks=still, steps=steps, stand_in_did=shares, beside=rates)
