"""An image classifier on one of two data sets, for `penstock schedule run examples/sweep.yaml`.

Without a GPU a step holds the lock of a simulated one, by the number in CUDA_VISIBLE_DEVICES, for GPU_MS an image.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

import penstock
from penstock.bench.demo_images import Crops, cached_images, find_images, prepare_worker
from penstock.bench.demo_trainer import small_network

CROP_PX = 32
HALVES = {"even": slice(0, None, 2), "odd": slice(1, None, 2)}
"""The data sets: every second picture."""


def make_loader(root: Path, half: str) -> DataLoader[tuple[torch.Tensor, int]]:
    """Read, decode, crop and flip the JPEGs, in two processes."""
    images = find_images(root, None).train[HALVES[half]]
    return DataLoader(
        Crops(images, CROP_PX),
        32,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        worker_init_fn=prepare_worker,
    )


@contextmanager
def gpu(seconds: float) -> Generator[None]:
    """Hold a simulated GPU for this time, and whatever longer the step takes."""
    number = os.environ.get("CUDA_VISIBLE_DEVICES") or "0"
    with open(Path(tempfile.gettempdir(), f"simulated-gpu-{os.getuid()}-{number}"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        began = time.perf_counter()
        yield
        time.sleep(max(0.0, began + seconds - time.perf_counter()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=HALVES, default="even")
    parser.add_argument("--images", type=Path, help="a folder of folders of JPEGs, unless these are to be drawn")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--gpu-ms", type=float, default=0.5, help="milliseconds an image on a simulated GPU")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    root = arguments.images or cached_images()
    loader = penstock.share(partial(make_loader, root, arguments.data), f"sweep-{arguments.data}", linger=1)
    model = small_network(4, 10, CROP_PX).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), arguments.lr)
    hold_s = arguments.gpu_ms / 1000 if device == "cpu" else 0.0

    for epoch in range(arguments.epochs):
        began, seen, total = time.perf_counter(), 0, 0.0
        for images, labels in loader:
            with gpu(hold_s * len(labels)):
                loss = nn.functional.cross_entropy(model(images.to(device).float() / 127.5 - 1), labels.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            seen += len(labels)
            total += len(labels) * loss.item()
        took = time.perf_counter() - began
        print(f"epoch {epoch}: {seen} images, {seen / took:.0f}/s, loss {total / seen:.2f}")
        penstock.log(epoch=epoch, loss=total / seen)
    loader.close()


if __name__ == "__main__":
    main()
