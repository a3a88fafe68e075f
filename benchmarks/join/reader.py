"""A script that only reads: one run of those that are started by hand, seconds apart."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg  # pyright: ignore[reportMissingTypeStubs]
import torch
from torch.utils.data import DataLoader, Dataset

import penstock
from penstock.feed.launch.feeds import feeds

SAMPLES, BATCH_SIZE, CROP = 20_000, 64, 192
BATCHES = -(-SAMPLES // BATCH_SIZE)


class Jpegs(Dataset[Any]):
    """Random crops of so many JPEGs, which repeats its files."""

    def __init__(self, folder: Path) -> None:
        self._files = sorted(folder.glob("*.jpg"))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        image = simplejpeg.decode_jpeg(self._files[index % len(self._files)].read_bytes())
        top, left = (int(torch.randint(side - CROP + 1, ())) for side in image.shape[:2])
        return np.ascontiguousarray(image[top : top + CROP, left : left + CROP]), index


def loader_of(folder: Path) -> DataLoader[Any]:
    return DataLoader(Jpegs(folder), BATCH_SIZE, shuffle=True, num_workers=2, worker_init_fn=_one_thread)


def _one_thread(_: int) -> None:
    torch.set_num_threads(1)


def position(name: str) -> int:
    """Return how many samples of the feed come before its next block, from the first cycle on."""
    found = next((feed for feed in feeds() if feed.name == name), None)
    return found.cycle * SAMPLES + found.sample if found else 0


def read(loader: Any, name: str, epochs: int, batches: int, step_s: float) -> dict[str, Any]:
    """Read epochs of so many batches; tell the times, and where the first epoch began."""
    before = position(name) if name else 0
    asked_s = since_s = time.monotonic()
    first_s = wait_s = 0.0
    start = None
    for _ in range(epochs):
        loop = iter(loader)
        for _ in range(batches):
            since_s = time.monotonic()
            if next(loop, None) is None:
                break
            now_s = time.monotonic()
            wait_s += now_s - since_s
            if not first_s:
                first_s = now_s
                start = loader.state_dict()["start"] if name else None
            time.sleep(step_s)
        else:
            if batches == BATCHES:
                assert next(loop, None) is None, "an epoch has so many batches"
        del loop
    return {
        "passed_over": 0 if start is None else max(0, start[0] * SAMPLES + start[1] - before),
        "start": start,
        "first_s": first_s - asked_s,
        "wait_s": wait_s - (first_s - asked_s),
        "began_s": asked_s,
        "ended_s": time.monotonic(),
    }


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--name", default="")
    arguments.add_argument("--epochs", type=int, default=5)
    arguments.add_argument("--batches", type=int, default=BATCHES)
    arguments.add_argument("--step-s", type=float, default=0.0)
    arguments.add_argument("--expect", type=int, default=1)
    o = arguments.parse_args()
    loader: Any = loader_of(o.folder)
    if o.name:
        folder = o.folder
        loader = penstock.share(lambda: loader_of(folder), o.name, expect=o.expect, linger=20)
    print(json.dumps(read(loader, o.name, o.epochs, o.batches, o.step_s)), flush=True)
    if o.name:
        loader.close()


if __name__ == "__main__":
    main()
