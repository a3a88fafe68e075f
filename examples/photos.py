"""An image classifier on JPEGs, with a loader of its own, or with --share on one feed with all that share.

python examples/photos.py --share --width 8 & python examples/photos.py --share --width 16 & wait
penstock run examples/collocation.yaml
"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

import penstock
from penstock.bench.demo_images import Crops, ImageFolder, cached_images, find_images, prepare_worker
from penstock.bench.demo_trainer import small_network

WORKERS = len(os.sched_getaffinity(0))


def make_loader(data: ImageFolder, batch_size: int) -> DataLoader[tuple[torch.Tensor, int]]:
    """Read, decode, crop and flip the JPEGs, in as many processes as there are cores."""
    return DataLoader(
        Crops(data.train, data.crop_px),
        batch_size,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=True,
        worker_init_fn=prepare_worker,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="a folder of folders of JPEGs, unless these are to be drawn")
    parser.add_argument("--share", action="store_true", help="one loader for all that share")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    data = find_images(arguments.data or cached_images(), None)
    if arguments.epochs == 0:
        return  # the pictures are there now
    if arguments.share:
        make = partial(make_loader, data, 32)
        loader = penstock.share(make, "photos", batch_size=arguments.batch_size, linger=1)
    else:
        loader = make_loader(data, arguments.batch_size)
    model = small_network(arguments.width, data.classes, data.crop_px).to(arguments.device)
    optimizer = torch.optim.AdamW(model.parameters(), arguments.lr)

    for epoch in range(arguments.epochs):
        began, seen, total = time.perf_counter(), 0, 0.0
        for images, labels in loader:
            inputs = images.to(arguments.device).float() / 127.5 - 1
            loss = nn.functional.cross_entropy(model(inputs), labels.to(arguments.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
            total += len(labels) * loss.item()
        took = time.perf_counter() - began
        print(f"epoch {epoch}: {seen} images, {seen / took:.0f}/s, loss {total / seen:.2f}")
        penstock.log(epoch=epoch, loss=total / seen)


if __name__ == "__main__":
    main()
