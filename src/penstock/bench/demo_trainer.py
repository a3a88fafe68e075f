"""A trainer of the demo: ``python -m penstock.bench.demo_trainer JOB``, as a run of a trial."""

# torch describes its types in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.utils.data import DataLoader

from penstock.autosharing.share import share
from penstock.bench.demo_images import DEVICE, BadImage, Crops, Labelled, TrainerJob, find_images, prepare_worker
from penstock.bench.loop import leave_failure, this_run
from penstock.errors import BadSetting
from penstock.runs.inside.watch import watch_loaders

_LINGER_S = 1.0
_WINDOW = "16MiB"
_FEED_BATCH_PIXELS = 1 << 17  # pixels of a batch of the feed's loader; each trainer cuts its own from it
_BAD_IMAGE = re.compile(rf"{BadImage.__name__}: (.+)")


def small_network(width: int, classes: int, side: int) -> nn.Sequential:
    """Build three blocks of convolution, norm and ReLU, on 16, 8 and 4 pixels a side; ``width`` channels first.

    It takes float images of n x 3 x side x side, and gives n x classes logits. It is
    so small that even without a GPU loading takes most of the time.
    """
    layers = list[nn.Module]()
    for before, after, kernel, stride in (
        (3, width, 7, side // 16),
        (width, 2 * width, 3, 2),
        (2 * width, 4 * width, 3, 2),
    ):
        convolution = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
        layers += [convolution, nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes))


def make_loader(images: list[Labelled], crop_px: int, batch_size: int, workers: int) -> DataLoader[Any]:
    """Make the loader of one trainer, or of the feed for all."""
    return DataLoader(
        Crops(images, crop_px),  # pyright: ignore[reportArgumentType]
        batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
        worker_init_fn=prepare_worker,
    )


def train(job: TrainerJob, files: Path) -> None:
    """Train the job's model for its epochs, as a script of a user's would."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    (files / DEVICE).write_text(torch.cuda.get_device_name() if device == "cuda" else device)
    torch.manual_seed(0)
    folder = find_images(Path(job.data), job.most)
    size = job.run.batch_size
    if job.feed:
        watch_loaders()  # as an import of penstock.share does
        feed_size = _FEED_BATCH_PIXELS // folder.crop_px**2
        make = partial(make_loader, folder.train, folder.crop_px, feed_size, job.workers)
        loader: Any = share(make, job.feed, batch_size=size, framework="torch", window=_WINDOW, linger=_LINGER_S)
    else:
        loader = make_loader(folder.train, folder.crop_px, size, job.workers)
    model = small_network(job.run.width, folder.classes, folder.crop_px).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), job.run.learning_rate)
    for _ in range(job.epochs):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(as_input(images, device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def as_input(images: torch.Tensor, device: str) -> torch.Tensor:
    """Turn uint8 pixels into floats in [-1, 1], on the device."""
    return images.to(device, non_blocking=True).float().div_(127.5).sub_(1.0)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the trainers share the cores
    try:
        train(msgspec.json.decode(sys.argv[1], type=TrainerJob), this_run().folder)
    except Exception as error:
        # An error of a loader's worker comes as text, with the worker's traceback.
        found = _BAD_IMAGE.findall(f"{type(error).__name__}: {error}\n{getattr(error, 'traceback_text', '')}")
        leave_failure(BadSetting(found[-1]) if found else error)
