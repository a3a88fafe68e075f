"""Pictures of every kind, and folders of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from contextlib import closing
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg

from penstock import ImageSource
from penstock.contracts import Cursor
from penstock.sources.images.decoders import nvimagecodec_version

SUBSAMPLINGS = ("444", "422", "420", "440", "411", "Gray")
FACTORS = (0x111111, 0x211111, 0x221111, 0x121111, 0x411111)
SIZES = ((1, 1), (7, 9), (16, 16), (33, 47), (130, 100), (64, 257), (3, 500))


def turbo_path() -> Path | None:
    """The library inside PyPI's turbojpeg."""
    spec = find_spec("turbojpeg")
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob("turbojpeg.libs/libturbojpeg*"), None)


needs_nvimagecodec = pytest.mark.skipif(not nvimagecodec_version(), reason="nvImageCodec is not installed")
needs_turbo = pytest.mark.skipif(turbo_path() is None, reason="PyPI has no turbojpeg for this Python")
BY_REGIONS = [
    pytest.param("libjpeg-turbo", marks=needs_turbo),
    pytest.param("nvimagecodec", marks=needs_nvimagecodec),
]
"""Decoders of regions, by name."""


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Noise, half of it blurred: nothing in it is like its neighbour, or all is a little."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    blurred = np.asarray(cv2.GaussianBlur(pixels, (5, 5), 0))
    return np.ascontiguousarray(np.where(np.arange(width)[None, :, None] < width // 2, pixels, blurred))


def jpeg(pixels: np.ndarray, subsampling: str = "420") -> bytes:
    if subsampling == "Gray":
        return simplejpeg.encode_jpeg(np.ascontiguousarray(pixels[:, :, :1]), 90, "GRAY", "Gray")
    return simplejpeg.encode_jpeg(pixels, 90, "RGB", subsampling)


def encoded(pixels: np.ndarray, suffix: str, *options: int) -> bytes:
    return cv2.imencode(suffix, np.ascontiguousarray(pixels[..., ::-1]), options)[1].tobytes()


def jpegs() -> dict[str, Callable[[np.ndarray], bytes]]:
    """Ways of writing a JPEG, by name."""
    kinds = {sub: lambda pixels, sub=sub: jpeg(pixels, sub) for sub in SUBSAMPLINGS}
    for factor in FACTORS:
        sampling = (cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor)
        for name, option in (
            ("progressive", cv2.IMWRITE_JPEG_PROGRESSIVE),
            ("restarts", cv2.IMWRITE_JPEG_RST_INTERVAL),
        ):
            kinds[f"{name} {factor:x}"] = lambda pixels, o=(option, 1, *sampling): encoded(pixels, ".jpg", *o)
    return kinds


def labelled(folder: Path, images: Iterable[bytes]) -> None:
    """Write JPEGs by turns into folders of two classes."""
    for label in "ab":
        (folder / label).mkdir()
    for number, image in enumerate(images):
        (folder / "ab"[number % 2] / f"{number:03}.jpg").write_bytes(image)


def colours(folder: Path, count: int = 60, classes: int = 4) -> list[tuple[int, int, int]]:
    """Fill a folder with pictures of one colour each, in class folders; return the colours as they are decoded."""
    choose, found = random.Random(0), []
    for i in range(count):
        height, width = choose.randint(20, 60), choose.randint(20, 60)
        path = folder / f"class-{i % classes}" / f"{i:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(np.full((height, width, 3), (4 * i, 255 - 4 * i, 128), np.uint8), "444"))
        found.append(tuple(map(int, simplejpeg.decode_jpeg(path.read_bytes())[0, 0])))
    return found


def textures(folder: Path, count: int = 40) -> None:
    """Fill a folder with noisy pictures of several kinds, in class folders."""
    kinds = list(jpegs().values())
    for i in range(count):
        path = folder / f"class-{i % 3}" / f"{i:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(kinds[i % len(kinds)](noise(60 + i, 110 - i, i)))


def blocks(source: ImageSource, cycle: int = 0, count: int | None = None) -> list[Any]:
    """The leaves of a cycle's blocks, of the first ``count`` unless all are wanted."""
    opened: Any = source.open(Cursor(cycle, 0))
    with closing(opened):
        return [[part.copy() for part in block.tree] for block in islice(opened, count)]


def equal(one: list[Any], other: list[Any]) -> bool:
    """Whether blocks have the same leaves, of the same types."""
    return len(one) == len(other) and all(
        a.dtype == b.dtype and np.array_equal(a, b)
        for each, same in zip(one, other, strict=True)
        for a, b in zip(each, same, strict=True)
    )
