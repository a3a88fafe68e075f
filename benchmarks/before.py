"""What moves samples now, against another revision of this repository: both by turns, in one environment.

python -m benchmarks.before c89a3f7d --data ../shared/data --json benchmarks/results/before.json

Sharing with four trainers (arrays, which cost nothing to make, and JPEGs), one training on images and on a table,
and a loop whose waits are recorded. Ratios are of a turn's two rates, now over before.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.children import ENVIRONMENT, ROOT
from benchmarks.claim import claim, report

LEAST = 0.97
SECONDS = "4"
BATCHES = 100_000
LOOP = f"""
import time, torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.zeros({BATCHES})), batch_size=None)
for _ in loader:
    break
began = time.perf_counter()
for _ in loader:
    pass
print("took", time.perf_counter() - began)
"""
ARRAYS = """
import numpy as np, penstock
def make_loader():
    return penstock.ArraySource({"x": np.zeros((20_000, 3072), "u1"), "y": np.arange(20_000)}, batch_size=64)
"""
JPEGS = """
import penstock
def make_loader():
    return penstock.ImageSource("images", size=224, batch_size=64)
"""


def penstock(tree: Path, folder: Path, *words: str) -> str:
    """Run a revision's command in a folder; return what it prints."""
    variables = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(tree / "src")}
    command = (sys.executable, "-m", "penstock", *words)
    return subprocess.run(command, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True, check=True).stdout


def bench(kind: str, *words: str, tree: Path, folder: Path) -> float:
    """Return the samples a second of a trial, of its slowest trainer."""
    options = ("--seconds", SECONDS, "--repeats", "1", "--json", "result.json")
    penstock(tree, folder, "bench", kind, *words, *options)
    figures: dict[str, Any] = json.loads((folder / "result.json").read_text())["results"][-1]["figures"]
    rates = figures["samples_per_s"]
    return min(rates) if isinstance(rates, list) else rates


def recorded(tree: Path, folder: Path) -> float:
    """Return the batches a second of a loop that does nothing, with its waits recorded."""
    printed = penstock(tree, folder, "run", "--store", f"store-{tree.name}", "--listeners", "none", "loop.py")
    return BATCHES / float(printed.split("took")[1].split()[0])


def write_data(folder: Path, images: Path) -> None:
    """Write the scripts and the table, and unpack the images."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name, text in {"arrays.py": ARRAYS, "jpegs.py": JPEGS, "loop.py": LOOP}.items():
        (folder / name).write_text(text)
    shutil.unpack_archive(images, folder, filter="data")
    (folder / "imagenet-sample").rename(folder / "images")
    rng = np.random.default_rng(0)
    columns = {f"x{number}": rng.standard_normal(2_000_000, "f4") for number in range(8)}
    pq.write_table(pa.table({**columns, "y": rng.integers(0, 10, 2_000_000)}), folder / "table.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="what is measured against")
    parser.add_argument("--data", type=Path, required=True, help="folder with imagenet-sample.tar")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    arms: dict[str, Callable[..., float]] = {
        "four trainers, one feed: arrays": partial(bench, "share", "arrays.py:make_loader", "-k", "4"),
        "four trainers, one feed: JPEGs": partial(bench, "share", "jpegs.py:make_loader", "-k", "4"),
        "one training: images": partial(bench, "load", "images", "--loaders", "penstock"),
        "one training: table": partial(bench, "load", "table.parquet", "--loaders", "penstock"),
        "a loop with recorded waits": recorded,
    }
    rates = {arm: {"before": list[float](), "now": list[float]()} for arm in arms}
    with tempfile.TemporaryDirectory() as temporary:
        folder, tree = Path(temporary, "data"), Path(temporary, "tree")
        folder.mkdir()
        write_data(folder, options.data / "imagenet-sample.tar")
        archive = ["git", "archive", f"--output={temporary}/tree.tar", options.revision]
        subprocess.run(archive, cwd=ROOT, check=True)
        shutil.unpack_archive(f"{temporary}/tree.tar", tree, filter="data")
        sides = {"before": tree, "now": ROOT}
        for turn in range(options.turns):
            for arm, measure in arms.items():
                for side in list(sides) if turn % 2 == 0 else list(sides)[::-1]:
                    rates[arm][side].append(measure(tree=sides[side], folder=folder))
                    print(
                        f"{turn + 1} of {options.turns}: {arm}, {side}: {rates[arm][side][-1]:,.0f}/s", flush=True
                    )
    ratios = {arm: [a / b for a, b in zip(of["now"], of["before"], strict=True)] for arm, of in rates.items()}
    claims = [claim(f"{arm}: now over before", "×", ratio, least=LEAST) for arm, ratio in ratios.items()]
    now = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    report(claims, options.json, before=options.revision, now=now.stdout.strip(), per_s=rates)


if __name__ == "__main__":
    main()
