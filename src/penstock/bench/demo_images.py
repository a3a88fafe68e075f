"""What the demo trains, and on what: folders of JPEGs, which it finds, decodes and crops."""

from __future__ import annotations

import os
import random
import shutil
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
import simplejpeg  # pyright: ignore[reportMissingTypeStubs]
from numpy.typing import NDArray

from penstock.errors import BadSetting
from penstock.linux.files import cache_folder, locked
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


F32 = NDArray[np.float32]

CLASSES = (
    "circle-stripes",
    "square-checks",
    "triangle-dots",
    "pentagon-rings",
    "hexagon-waves",
    "star-spokes",
    "cross-bricks",
    "ring-plain",
    "crescent-grid",
    "diamond-spots",
)
IMAGES = 2000
SIDE_PX = (400, 500)
_QUALITY = 90
_NOISE_PX = 1024  # side of the fields that grounds are cut from


def cached_images(on_made: Callable[[int, int], None] = lambda done, of: None) -> Path:
    """Return the folder of the demo's own images in the user's cache directory; make it if need be.

    Args:
        on_made: Called with the number of images made, and of all.
    """
    root = cache_folder() / "demo-images"
    if not root.is_dir():
        make_images(root, on_made=on_made)
    return root


def make_images(
    root: Path,
    *,
    images: int = IMAGES,
    side_px: tuple[int, int] = SIDE_PX,
    seed: int = 0,
    on_made: Callable[[int, int], None] = lambda done, of: None,
) -> None:
    """Make ``root/<class>/*.jpg``, all of it or nothing, unless it is there.

    Equal arguments give equal pictures. Of two processes that make one folder at a time, the second waits.
    """
    half = root.parent / f".{root.name}"
    jobs = [
        (half / CLASSES[index % len(CLASSES)] / f"{index:05}.jpg", index % len(CLASSES), (seed, index))
        for index in range(images)
    ]
    root.parent.mkdir(parents=True, exist_ok=True)
    with locked(root.parent, os.O_RDONLY):
        if root.is_dir():
            return
        shutil.rmtree(half, ignore_errors=True)  # of a process that was killed
        try:
            for folder in {path.parent for path, _, _ in jobs}:
                folder.mkdir(parents=True)
            # Threads: NumPy and libjpeg, which do nearly all the work, release the GIL.
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                for done, _ in enumerate(pool.map(partial(_write, side_px=side_px), jobs), 1):
                    on_made(done, len(jobs))
            half.rename(root)
        finally:
            shutil.rmtree(half, ignore_errors=True)


def _write(job: tuple[Path, int, tuple[int, ...]], side_px: tuple[int, int]) -> None:
    path, label, seed = job
    image_HWC = draw(label, np.random.default_rng(seed), side_px)
    path.write_bytes(simplejpeg.encode_jpeg(image_HWC, quality=_QUALITY, colorsubsampling="420"))


def draw(label: int, rng: np.random.Generator, side_px: tuple[int, int] = SIDE_PX) -> NDArray[np.uint8]:
    """Draw a picture of a class: its shape, filled with its texture, somewhere on a noisy ground."""
    height, width = (int(side) for side in rng.integers(side_px[0], side_px[1] + 1, 2))
    ground = _mixed(_noise_patch(rng, height, width), rng)
    radius = rng.uniform(0.27, 0.42) * min(height, width)
    x0, y0 = rng.uniform(radius, width - radius), rng.uniform(radius, height - radius)
    angle = rng.uniform(-0.35, 0.35)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    x, y = (x - x0) / radius, (y - y0) / radius
    u = (np.cos(angle) * x + np.sin(angle) * y).astype(np.float32)
    v = (np.cos(angle) * y - np.sin(angle) * x).astype(np.float32)
    mask = _shape(label, u, v)[..., None]
    value = _texture(label, u, v, rng)
    value += rng.uniform(0.1, 0.25) * (_noise_patch(rng, height, width) - 0.5)
    object_HWC = _mixed(np.clip(value, 0, 1), rng)
    image = np.where(mask, object_HWC, ground)
    grain = _noise_patch(rng, height, width, fine=True)[..., None]
    return np.clip(image + 44 * (grain - 0.5), 0, 255).astype(np.uint8)


def _mixed(value: F32, rng: np.random.Generator) -> F32:
    """Map values in [0, 1] to shades between two random colours."""
    low, high = rng.uniform(0, 120, 3), rng.uniform(135, 255, 3)
    swapped = rng.random(3) < 0.25
    low, high = np.where(swapped, high, low), np.where(swapped, low, high)
    return (low + value[..., None] * (high - low)).astype(np.float32)


def _noise_patch(rng: np.random.Generator, height: int, width: int, *, fine: bool = False) -> F32:
    field = _noise(fine)
    top, left = int(rng.integers(_NOISE_PX - height)), int(rng.integers(_NOISE_PX - width))
    return field[top : top + height, left : left + width]


@cache
def _noise(fine: bool) -> F32:
    """Make a large field of noise in [0, 1], with the spectrum of a photograph, or of film grain."""
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(_NOISE_PX), np.fft.rfftfreq(_NOISE_PX), indexing="ij"))
    frequency[0, 0] = 1
    phases = np.random.default_rng(7).normal(size=(2, *frequency.shape))
    spectrum = (phases[0] + 1j * phases[1]) / frequency ** (0.2 if fine else 1.3)
    field = np.fft.irfft2(spectrum)
    return np.clip(0.5 + 0.2 * field / field.std(), 0, 1).astype(np.float32)


def _polygon(u: F32, v: F32, corners: int, inner: float | None = None) -> Any:
    """Return a mask of a regular polygon, or of a star whose inner corners lie at a part of its radius."""
    half = np.pi / corners
    inner = np.cos(half) if inner is None else inner  # the middle of a polygon's side
    from_corner = (np.arctan2(v, u) + np.pi / 2) % (2 * half)
    from_corner = np.minimum(from_corner, 2 * half - from_corner)
    x, y = inner * np.cos(half), inner * np.sin(half)  # a side goes from (1, 0) to there
    distance = np.hypot(u, v)
    return (distance * np.cos(from_corner) - 1) * y + distance * np.sin(from_corner) * (1 - x) <= 0


def _shape(label: int, u: F32, v: F32) -> Any:
    distance = np.hypot(u, v)
    shapes: tuple[Callable[[], Any], ...] = (
        lambda: distance < 0.9,
        lambda: np.maximum(abs(u), abs(v)) < 0.8,
        lambda: _polygon(u, v, 3),
        lambda: _polygon(u, v, 5),
        lambda: _polygon(u, v, 6),
        lambda: _polygon(u, v, 5, 0.45),
        lambda: (np.minimum(abs(u), abs(v)) < 0.3) & (np.maximum(abs(u), abs(v)) < 0.95),
        lambda: (distance < 0.95) & (distance > 0.5),
        lambda: (distance < 0.95) & (np.hypot(u - 0.45, v) > 0.7),
        lambda: abs(u) / 0.6 + abs(v) < 1,
    )
    return shapes[label]()


def _texture(label: int, u: F32, v: F32, rng: np.random.Generator) -> F32:
    period = rng.uniform(0.3, 0.45)
    a, b = u / period, v / period
    textures: tuple[Callable[[], Any], ...] = (
        lambda: np.sin(2 * np.pi * b) > 0,
        lambda: (np.floor(a) + np.floor(b)) % 2,
        lambda: np.hypot(a % 1 - 0.5, b % 1 - 0.5) < 0.32,
        lambda: np.sin(2 * np.pi * np.hypot(a, b)) > 0,
        lambda: np.sin(2 * np.pi * (b + 0.25 * np.sin(2 * np.pi * a))) > 0,
        lambda: np.sin(9 * np.arctan2(v, u)) > 0,
        lambda: np.minimum((a + 0.5 * (np.floor(2 * b) % 2)) % 1, (2 * b) % 1) > 0.18,
        lambda: 0.5 + 0.4 * u,
        lambda: np.minimum(a % 1, b % 1) < 0.25,
        lambda: np.sin(2 * np.pi * a) * np.sin(2 * np.pi * b) > 0.3,
    )
    return np.asarray(textures[label](), np.float32) + np.float32(0)
