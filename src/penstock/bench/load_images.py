"""Loaders of images, each taken of by a process of its own: ``python -m penstock.bench.load_images JOB``.

Every loader makes random crops (RandomResizedCrop) of uint8, half of them mirrored, in a new random order each
epoch.
"""

# The loaders' packages are there only where they are measured.
# pyright: basic, reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false

from __future__ import annotations

import math
import os
import random
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from penstock.bench.loop import take, this_run

SUFFIXES = (".jpg", ".jpeg")
DECODER = "decoder"
"""The file of a run that names what it decodes with."""


class LoadJob(msgspec.Struct, frozen=True):
    """What to load, with which loader, and how."""

    loader: str
    folder: str  # of JPEGs, or what names tables
    size: int
    batch_size: int
    workers: int
    columns: list[str] | None  # of tables
    scratch: str  # a folder for what a loader writes
    paths: list[str] = []  # of JPEGs or tables, as the process finds them


def images_in(folder: str) -> list[str]:
    """Paths of the JPEGs in a folder and below it; links are followed, as ImageSource does."""
    walked = os.walk(folder, followlinks=True)
    return sorted(
        os.path.join(root, name) for root, _, names in walked for name in names if name.lower().endswith(SUFFIXES)
    )


def penstock(job: LoadJob) -> Iterator[int]:
    """Penstock's ImageSource, alone."""
    from penstock.sources.images.image_source import ImageSource

    labels = [0] * len(job.paths)  # some images may lie in folders of classes, and others not
    source = ImageSource(
        job.folder, size=job.size, batch_size=job.batch_size, workers=job.workers, suffixes=SUFFIXES, labels=labels
    )
    while True:
        for images, _ in source:
            yield len(images)


def crop(height: int, width: int) -> tuple[int, int, int, int]:
    """As torchvision's RandomResizedCrop: top, left, height and width."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def by_pillow(path: str, size: int) -> Any:
    import numpy as np
    from PIL import Image

    with Image.open(path) as image:
        rgb = image.convert("RGB")
    top, left, h, w = crop(rgb.height, rgb.width)
    box = (left, top, left + w, top + h)
    pixels = np.array(rgb.resize((size, size), Image.Resampling.BILINEAR, box=box))
    return pixels[:, ::-1] if random.random() < 0.5 else pixels


def by_simplejpeg(path: str, size: int) -> Any:
    import cv2
    import simplejpeg

    pixels = simplejpeg.decode_jpeg(Path(path).read_bytes(), "RGB", strict=False)
    top, left, h, w = crop(*pixels.shape[:2])
    pixels = cv2.resize(pixels[top : top + h, left : left + w], (size, size), interpolation=cv2.INTER_LINEAR)
    return cv2.flip(pixels, 1) if random.random() < 0.5 else pixels


def by_torchvision(path: str, size: int) -> Any:
    from torchvision.io import ImageReadMode, decode_image, read_file
    from torchvision.transforms.v2.functional import resized_crop

    pixels = decode_image(read_file(path), ImageReadMode.RGB)
    pixels = resized_crop(pixels, *crop(*pixels.shape[1:]), [size, size], antialias=True)
    return (pixels.flip(2) if random.random() < 0.5 else pixels).numpy()


def data_loader(load: Callable[[str, int], Any]) -> Callable[[LoadJob], Iterator[int]]:
    """Make an arm of torch's DataLoader."""

    def arm(job: LoadJob) -> Iterator[int]:
        import numpy as np
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Images(Dataset[Any]):
            def __len__(self) -> int:
                return len(job.paths)

            def __getitem__(self, i: int) -> Any:
                return torch.from_numpy(np.ascontiguousarray(load(job.paths[i], job.size)))

        torch.set_num_threads(1)
        loader = DataLoader(
            Images(),
            batch_size=job.batch_size,
            shuffle=True,
            num_workers=job.workers,
            persistent_workers=True,
            worker_init_fn=one_thread,
        )
        while True:
            for batch in loader:
                yield len(batch)

    return arm


def one_thread(_worker: int) -> None:
    try:
        import cv2
    except ImportError:
        return
    cv2.setNumThreads(1)


class Loads(NamedTuple):
    """A loader: its name for people, the modules that it needs, with the decoder last, and what runs it."""

    name: str
    modules: tuple[str, ...]
    run: Callable[[LoadJob], Iterator[int]]


ARMS: dict[str, Loads] = {
    "penstock": Loads("Penstock ImageSource", ("penstock", "simplejpeg", "cv2"), penstock),
    "pillow": Loads("torch DataLoader, Pillow", ("torch", "PIL"), data_loader(by_pillow)),
    "simplejpeg": Loads(
        "torch DataLoader, simplejpeg and OpenCV", ("torch", "cv2", "simplejpeg"), data_loader(by_simplejpeg)
    ),
    "torchvision": Loads("torch DataLoader, torchvision", ("torch", "torchvision"), data_loader(by_torchvision)),
}


def decoder(arm: str) -> str:
    """What an arm decodes with, and its version."""
    from penstock.sources.images.decoders import decoder as fastest

    return fastest().name if arm == "penstock" else version(ARMS[arm].modules[-1])


def version(name: str) -> str:
    """A module, and its version."""
    return f"{name} {getattr(import_module(name), '__version__', '')}".strip()


def run(loaders: dict[str, Loads], find: Callable[[str], list[str]], decoder: Callable[[str], str]) -> None:
    """Take the batches of the loader that the command line describes."""
    job = msgspec.json.decode(sys.argv[1], type=LoadJob)
    job = msgspec.structs.replace(job, paths=find(job.folder))
    (this_run().folder / DECODER).write_text(decoder(job.loader))
    take(loaders[job.loader].run(job), int)


if __name__ == "__main__":
    run(ARMS, images_in, decoder)
