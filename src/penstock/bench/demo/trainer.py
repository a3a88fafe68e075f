"""A trainer process of the demo: ``python -m penstock.bench.demo.trainer``.

It reads its job from standard input and reports on standard output. All arms
run this; what differs is in ``open_loader``.
"""
# torch describes its types in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import os
import re
import sys
import time
from functools import partial
from typing import Any

import msgspec
import torch
from torch import nn
from torch.utils.data import DataLoader

from penstock.autosharing.share import share
from penstock.bench.demo.images import BadImage, Crops, Labelled, TrainerJob, prepare_worker
from penstock.bench.measure.loop import failure, heard_lines, reply, reserve_output
from penstock.errors import BadSetting

_NOTE_EVERY_S = 0.25
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


def open_loader(job: TrainerJob) -> Any:
    """Open this trainer's own ``DataLoader``, or the feed."""
    size = job.run.batch_size
    if job.feed is None:
        return make_loader(job.train, job.crop_px, size, job.workers)
    feed_size = _FEED_BATCH_PIXELS // job.crop_px**2
    make = partial(make_loader, job.train, job.crop_px, feed_size, job.workers)
    return share(make, job.feed, batch_size=size, framework="torch", window=_WINDOW, linger=_LINGER_S)


def train(job: TrainerJob, device: str) -> None:
    """Train the job's model for its epochs; report the first batch, and at the end the images by time."""
    torch.manual_seed(0)
    model = small_network(job.run.width, job.classes, job.crop_px).to(device)
    loader = open_loader(job)
    optimizer = torch.optim.AdamW(model.parameters(), job.run.learning_rate)
    seen, times_s, images_then = 0, list[float](), list[int]()
    for _ in range(job.epochs):
        for images, labels in loader:
            now_s = time.monotonic()
            seen += len(labels)
            if not times_s:
                reply({"first_s": now_s})
            if not times_s or now_s - times_s[-1] >= _NOTE_EVERY_S:
                times_s.append(now_s)
                images_then.append(seen)
            loss = nn.functional.cross_entropy(model(as_input(images, device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    name = torch.cuda.get_device_name() if device == "cuda" else device
    times, then = [*times_s, time.monotonic()], [*images_then, seen]
    reply({"times_s": times, "images_then": then, "device": name})
    if job.feed is not None:
        loader.close()


def as_input(images: torch.Tensor, device: str) -> torch.Tensor:
    """Turn uint8 pixels into floats in [-1, 1], on the device."""
    return images.to(device, non_blocking=True).float().div_(127.5).sub_(1.0)


def main() -> None:
    """Do the job that standard input describes."""
    reserve_output()
    torch.set_num_threads(1)
    heard = heard_lines()
    job = msgspec.json.decode(next(heard), type=TrainerJob)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    reply({"ready_s": time.monotonic()})
    if next(heard, None) is None:  # the demo is gone
        return
    try:
        train(job, device)
    except BrokenPipeError:  # the demo is gone
        os._exit(1)
    except Exception as error:
        # An error of a loader's worker comes as text, with the worker's traceback.
        found = _BAD_IMAGE.findall(f"{type(error).__name__}: {error}\n{getattr(error, 'traceback_text', '')}")
        reply(failure(BadSetting(found[-1]) if found else error))
        sys.exit(1)


if __name__ == "__main__":
    main()
