"""What it costs that waits are recorded by default: runs with it and runs without, in turn.

python -m benchmarks.waits --json benchmarks/results/waits.json
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.children import ENVIRONMENT
from benchmarks.claim import claim, report
from benchmarks.share import jpeg

REPEATS = 4
BATCHES = 100_000
SMALL = f"""
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
TRAINING = """
import sys, time, torch
sys.path.insert(0, sys.argv[2])
from benchmarks.share.jpeg import make_loader
torch.set_num_threads(1)
layers = torch.nn.Conv2d(3, 8, 7, 4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(10)
net = torch.nn.Sequential(*layers)
loader = make_loader(sys.argv[1], workers=1, batch_size=16)
for images, labels in loader:
    net(images.permute(0, 3, 1, 2).float() / 255)
    break
optimizer = torch.optim.SGD(net.parameters(), 0.01)
began = time.perf_counter()
for _ in range(2):
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(net(images.permute(0, 3, 1, 2).float() / 255), labels % 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("took", time.perf_counter() - began)
"""


def took_s(folder: Path, script: str, *words: str, watched: bool) -> float:
    """Return the time of a script's loops by its own clock, as a run that records its waits or not."""
    path = folder / "script.py"
    path.write_text(script)
    option = "--watch-dataloader" if watched else "--no-watch-dataloader"
    options = ("--store", str(folder / "store"), "--listeners", "proc", option)
    command = (sys.executable, "-m", "penstock", "run", *options, "--", str(path), *words)
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **ENVIRONMENT}, check=True)
    return float(done.stdout.split("took")[1].split()[0])


def both_s(repeat: int, folder: Path, script: str, *words: str) -> tuple[float, float]:
    """Return the times with and without, begun in turn with either: a machine that gets slower favours none."""
    order = (True, False) if repeat % 2 == 0 else (False, True)
    took = {watched: took_s(folder, script, *words, watched=watched) for watched in order}
    return took[True], took[False]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (images := folder / "images").mkdir()
        jpeg.generate(str(images), 1000)
        root = str(Path(__file__).parents[1])
        small: list[tuple[float, float]] = []
        training: list[tuple[float, float]] = []
        for repeat in range(REPEATS):
            small.append(both_s(repeat, folder, SMALL))
            training.append(both_s(repeat, folder, TRAINING, str(images), root))
    batch_us = [(one - other) / BATCHES * 1e6 for one, other in small]
    percent = [100 * (one / other - 1) for one, other in training]
    claims = [
        claim("waits recorded: time of a batch more", "us", batch_us, most=20),
        claim("waits recorded: time of a JPEG training more", "%", percent, most=1),
    ]
    seconds = {"small, s with and without": small, "training, s with and without": training}
    report(claims, options.json, **seconds, alone_us=median(other for _, other in small) / BATCHES * 1e6)


if __name__ == "__main__":
    main()
