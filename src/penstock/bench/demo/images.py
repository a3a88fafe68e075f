"""What the demo trains, and on what: folders of JPEGs, which it finds, decodes and crops."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
import simplejpeg  # pyright: ignore[reportMissingTypeStubs]
from numpy.typing import NDArray

from penstock.errors import BadSetting
from penstock.sources.records.files import FolderRecords

Labelled = tuple[str, int]  # path of a JPEG, number of its class

DEVICE = "device"
"""The file of a run that names what it trained on."""
_CROP_AREA = 0.5, 1.0  # least and most part of an image that a crop takes
_CROP_RATIO = 0.8, 1.25
_SUFFIXES = (".jpg", ".jpeg")
_BUCKETS = 10


class BadImage(BadSetting):
    """Raised for a file that cannot be decoded as a JPEG; the message names it."""


class ImageFolder(msgspec.Struct, frozen=True):
    """A data set in a folder."""

    root: Path
    name: str  # last part of the folder's path
    train: list[Labelled]  # files to train on, and their classes
    classes: int  # number of classes
    crop_px: int  # side of the square that a model gets
    note: str = ""  # what the user should know about how the folder was read; may be empty

    def mean_bytes(self) -> int:
        """Return the mean size of a training file, from about 500 of them."""
        some = self.train[:: max(1, len(self.train) // 500)]
        return sum(os.path.getsize(path) for path, _ in some) // len(some)


def find_images(root: Path, most: int | None) -> ImageFolder:
    """Find the JPEGs of a folder, with their classes.

    Args:
        root: Holds a folder for each class; or ``train`` with such folders; or just JPEGs.
        most: Training images to use, drawn at random with a fixed seed; None for all.
    """
    if not root.exists():
        raise BadSetting(f"--data {root}: there is no such folder")
    if not root.is_dir():
        raise BadSetting(f"--data {root}: this is a file; give the folder that holds the JPEGs")
    inner = root / "train"
    records = FolderRecords(inner if inner.is_dir() else root, _SUFFIXES)
    paths = [(f"{records.root}/{name}", name.rpartition("/")[0].split("/")[0]) for name in records.names]
    notes: list[str] = []
    if any(of for _, of in paths):
        classes, number = len(records.classes), {name: i for i, name in enumerate(records.classes)}
        train = [(path, number[of]) for path, of in paths if of]
    else:
        notes.append(f"{root.name} has no class folders: labels are made from file names, and teach nothing")
        classes = _BUCKETS
        train = [(path, zlib.crc32(os.path.basename(path).encode()) % _BUCKETS) for path, _ in paths]
    if most is not None and len(train) > most:
        notes.append(f"{most:,} of {len(train):,} training images are used; --images sets how many")
        train = sorted(random.Random(0).sample(train, most))
    return ImageFolder(root.resolve(), root.resolve().name, train, classes, _crop_px(train), ". ".join(notes))


def _crop_px(train: Sequence[Labelled]) -> int:
    """Return 64, or 32 if the pictures are smaller than that."""
    height, width, _ = decode(train[0][0]).shape
    return 64 if min(height, width) >= 64 else 32


def decode(path: str) -> NDArray[np.uint8]:
    """Decode a file's picture, rows x columns x RGB."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        return simplejpeg.decode_jpeg(data, "RGB")
    except ValueError as error:
        raise BadImage(f"{path} cannot be decoded as a JPEG ({error}); remove the file, or replace it") from None


class Crops:
    """A map-style data set: each image is decoded whole, cropped at random, resized, and half are mirrored.

    An item is (uint8 of 3 x ``crop_px`` x ``crop_px``, class).
    """

    def __init__(self, images: list[Labelled], crop_px: int) -> None:
        self._images = images
        self._crop_px = crop_px

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        path, label = self._images[index]
        image = decode(path)
        height, width, _ = image.shape
        area = random.uniform(*_CROP_AREA) * height * width
        stretch = random.uniform(*_CROP_RATIO)
        crop_height = min(height, max(1, round((area * stretch) ** 0.5)))
        crop_width = min(width, max(1, round((area / stretch) ** 0.5)))
        top, left = random.randint(0, height - crop_height), random.randint(0, width - crop_width)
        crop = _resized(image[top : top + crop_height, left : left + crop_width], self._crop_px)
        if random.random() < 0.5:
            crop = crop[:, ::-1]
        return np.ascontiguousarray(crop.transpose(2, 0, 1)), label


def _resized(image: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    method = cv2.INTER_AREA if min(image.shape[:2]) > side else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(image, (side, side), interpolation=method), np.uint8)


def prepare_worker(*_: Any) -> None:
    """Limit OpenCV to one thread in a loader worker, as the workers share the cores already."""
    cv2.setNumThreads(0)


class DemoRun(msgspec.Struct, frozen=True):
    """One model to train. ``width`` is the channels of its first layer."""

    name: str
    width: int
    learning_rate: float
    batch_size: int


class TrainerJob(msgspec.Struct, frozen=True):
    """The job of one trainer process."""

    run: DemoRun
    data: str  # folder of the images
    most: int | None  # training images to use; None for all
    epochs: int
    workers: int  # workers of this trainer's own loader, or of the feed's
    feed: str = ""  # name of the feed to share; empty for its own loader


def runs(count: int) -> list[DemoRun]:
    """Make ``count`` runs: a small search over width, learning rate and batch size."""
    grid = [
        (width, rate, size)
        for rates in ((1e-2, 3e-3), (2e-2, 1e-3))
        for width, rate, size in ((8, rates[0], 32), (16, rates[0], 64), (8, rates[1], 24), (24, rates[1], 48))
    ]
    return [DemoRun(f"{number + 1}", *grid[number % len(grid)]) for number in range(count)]
