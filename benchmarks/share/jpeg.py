"""The JPEG loader that is measured: simplejpeg decodes, OpenCV crops and resizes, torch collates."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from penstock.errors import BadSetting

SIDE = 224
SEGMENTS = 64
_BATCHES_PER_SEGMENT = 16

Image = npt.NDArray[np.uint8]


def files_in(folder: str) -> list[Path]:
    """Find the JPEGs below a folder."""
    found = sorted(p for p in Path(folder).rglob("*") if p.suffix.lower() in {".jpg", ".jpeg"})
    if not found:
        raise BadSetting(f"no JPEG lies below {folder!r}: give another --data, or leave it out to generate some")
    return found


def generate(folder: str, count: int) -> None:
    """Write JPEGs of about the size and density of ImageNet's (500 by 400, 110 KB)."""
    import simplejpeg  # pyright: ignore[reportMissingTypeStubs]

    rng = np.random.default_rng(0)
    for i in range(count):
        height, width = (int(side) for side in rng.integers(330, 520, 2))
        coarse = rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
        image = coarse.repeat(8, 0).repeat(8, 1)[:height, :width].astype(np.int16)
        image += rng.integers(-40, 40, image.shape, np.int16)
        pixels: Image = np.ascontiguousarray(image.clip(0, 255).astype(np.uint8))
        Path(folder, f"{i:05d}.jpg").write_bytes(simplejpeg.encode_jpeg(pixels, quality=82))


class Jpegs:
    """A map-style dataset of random resized crops (area 0.08 to 1), which repeats its files.

    Epochs are long, so that no start of workers falls into a measured interval.
    """

    def __init__(self, files: list[Path], samples: int) -> None:
        self._files = [str(path) for path in files]
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Image, int]:
        import simplejpeg  # pyright: ignore[reportMissingTypeStubs]

        which = index % len(self._files)
        image = simplejpeg.decode_jpeg(Path(self._files[which]).read_bytes(), fastdct=True, fastupsample=True)
        return random_resized_crop(image), which


def random_resized_crop(image: Image) -> Image:
    """Crop as torchvision does: area 0.08 to 1 of the image, aspect 3/4 to 4/3."""
    import cv2
    import torch

    height, width = image.shape[:2]
    top, left, h, w = 0, 0, height, width
    for _ in range(10):
        area, log_aspect, u, v = cast("list[float]", torch.rand(4).tolist())  # pyright: ignore
        target = height * width * (0.08 + 0.92 * area)
        aspect = math.exp(math.log(3 / 4) + (math.log(4 / 3) - math.log(3 / 4)) * log_aspect)
        h, w = round(math.sqrt(target / aspect)), round(math.sqrt(target * aspect))
        if 0 < h <= height and 0 < w <= width:
            top, left = int(u * (height - h + 1)), int(v * (width - w + 1))
            break
    else:
        h, w = height, width
    resized: Any = cv2.resize(image[top : top + h, left : left + w], (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
    return resized


def make_loader(folder: str, *, workers: int, batch_size: int, pin: bool = False) -> Any:
    """Make a ``DataLoader`` of (uint8 images [batch, 224, 224, 3], labels), in pinned memory if ``pin``."""
    import cv2
    import torch
    from torch.utils.data import DataLoader, Dataset

    cv2.setNumThreads(0)

    class TorchJpegs(Jpegs, Dataset[Any]):
        pass

    def one_thread(_: int) -> None:
        torch.set_num_threads(1)
        cv2.setNumThreads(0)

    samples = SEGMENTS * _BATCHES_PER_SEGMENT * batch_size
    return DataLoader(
        TorchJpegs(files_in(folder), samples),
        batch_size=batch_size,
        shuffle=True,
        num_workers=workers,
        worker_init_fn=one_thread,
        pin_memory=pin,
    )
