"""A training script as people write it, which knows nothing of Penstock: reads JPEGs, and trains unless --read.

python -m benchmarks autosharing starts it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from penstock.bench.demo_images import Crops, find_images, prepare_worker
from penstock.bench.demo_trainer import small_network


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for a JSON of each run")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", choices=["read", "train", "only train"], default="read")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = find_images(arguments.data, None)
    loader = DataLoader(
        Crops(data.train, data.crop_px),
        32,
        shuffle=True,
        num_workers=arguments.workers,
        persistent_workers=arguments.workers > 0,
        worker_init_fn=prepare_worker,
    )
    model = small_network(8, data.classes, data.crop_px)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    samples, began_s = 0, 0.0
    kept = next(iter(loader)) if arguments.work == "only train" else None
    cpu_s = 0.0
    for _ in range(arguments.epochs):
        for images, labels in [kept] * len(loader) if kept else loader:
            if not samples:
                began_s, cpu_s = time.monotonic(), _cpu_s()
            samples += len(labels)
            if arguments.work != "read":
                loss = nn.functional.cross_entropy(model(images.float() / 127.5 - 1), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    ended_s = time.monotonic()
    result = {"samples": samples, "began_s": began_s, "ended_s": ended_s, "cpu_s": _cpu_s() - cpu_s}
    (arguments.out / f"{os.getpid()}.json").write_text(json.dumps(result))


def _cpu_s() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime


if __name__ == "__main__":
    main()
