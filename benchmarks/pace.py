"""Measures runs of different speed on one feed: by pace, together, and with feeds of their own.

python -m benchmarks pace FOLDER --json benchmarks/results/pace.json

FOLDER holds JPEGs, cropped to 224 pixels. A run takes a batch and sleeps: so the CPUs idle as beside a GPU that
trains. Its rate is counted from the 60th second on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from benchmarks.claim import ResultsFile, claim, report
from rich.console import Console

import penstock

SKIPPED_S = 60.0
WORLDS: dict[str, list[tuple[int, float]]] = {  # of each run, images of a batch and the seconds that a step takes
    "1 : 2": [(8, 0.04), (16, 0.16)],
    "equal": [(8, 0.08)] * 4,
}
ARMS = ("pace", "together", "own feeds")
CONSOLE = Console()


def make(folder: str) -> Any:
    return penstock.ImageSource(folder, size=224, batch_size=32, seed=1)


def train(folder: str, arm: str, rank: int, rows: int, step_s: float, seconds: float) -> None:
    """Be a run: print a line of JSON, with its images per second and its longest wait for a batch."""
    name = f"{arm}-{rank}" if arm == "own feeds" else arm
    options: Any = {"pace": "together"} if arm == "together" else {}
    with penstock.share(lambda: make(folder), name, rows, window="256MiB", linger=1, **options) as loader:
        began, images, longest_s, moved = time.monotonic(), 0, 0.0, 0
        batches, feed = iter(loader), loader.name
        while (now := time.monotonic()) < began + SKIPPED_S + seconds:
            batch = next(batches, None)
            if batch is None:
                batches = iter(loader)
                continue
            moved, feed = moved + (loader.name != feed), loader.name
            if now >= began + SKIPPED_S:
                images += rows
                longest_s = max(longest_s, time.monotonic() - now)
            time.sleep(step_s)
    print(json.dumps({"images_per_s": images / seconds, "longest_wait_s": longest_s, "moved": moved}))


def measured(folder: Path, arm: str, world: list[tuple[int, float]], seconds: float) -> list[dict[str, Any]]:
    """Run all runs of a world at once; return what each says."""
    words = [sys.executable, "-m", "benchmarks.pace"]
    runs = [
        subprocess.Popen(
            [*words, str(folder), arm, str(i), str(rows), str(step_s), str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for i, (rows, step_s) in enumerate(world)
    ]
    said = [run.communicate()[0] for run in runs]
    return [json.loads(each.splitlines()[-1]) for each in said]


def main(
    folder: Annotated[Path, typer.Argument(help="Folder of JPEGs.")],
    json_file: ResultsFile = None,
    seconds: Annotated[float, typer.Option(help="Time that is counted.")] = 240.0,
    repeats: Annotated[int, typer.Option()] = 3,
) -> None:
    found: dict[str, dict[str, list[list[dict[str, Any]]]]] = {}
    for name, world in WORLDS.items():
        arms: dict[str, list[list[dict[str, Any]]]] = {arm: [] for arm in ARMS}
        for _ in range(repeats):
            for arm in ARMS:
                arms[arm].append(measured(folder, arm, world, seconds))
                rates = ", ".join(f"{run['images_per_s']:.1f}" for run in arms[arm][-1])
                CONSOLE.print(f"{name}, {arm}: {rates} images/s", highlight=False)
        found[name] = arms
    report([*claims(found)], json_file, worlds=found, seconds=seconds)


def claims(found: dict[str, dict[str, list[list[dict[str, Any]]]]]) -> list[dict[str, Any]]:
    def worst(world: str, arm: str, of: str) -> list[float]:
        """Of each repeat, the least of the runs' rates by those of another arm."""
        pairs = zip(found[world][arm], found[world][of], strict=True)
        return [min(a["images_per_s"] / b["images_per_s"] for a, b in zip(*pair, strict=True)) for pair in pairs]

    return [
        claim("1 : 2 by pace, of feeds of their own", "×", worst("1 : 2", "pace", "own feeds"), least=0.95),
        claim("equal by pace, of one feed", "×", worst("equal", "pace", "together"), least=0.99),
    ]


if __name__ == "__main__":
    folder, arm, *numbers = sys.argv[1:]
    train(folder, arm, int(numbers[0]), int(numbers[1]), float(numbers[2]), float(numbers[3]))
