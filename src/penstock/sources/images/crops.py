"""Random crops, flips and colours that depend on (seed, cycle, place in the cycle) alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.contracts import ByteArray, Region
from penstock.sources.images.opencv import cv2

Draws = npt.NDArray[np.float64]

_AUGMENT = 2
_ATTEMPTS = 10
_COLOURS = 4
_BRIGHTNESS, _CONTRAST, _, _HUE = range(_COLOURS)
_DRAWS = 4 * _ATTEMPTS + 1 + 2 * _COLOURS
"""Numbers that a crop draws: its attempts, the flip, and factors and order of the colour steps."""

_MOST_AVERAGED = 4
"""Pixels that are averaged at most, down and to the right; more take longer, and win little."""
_RIGHT_MARGIN_PX = 2
_OF_CENTER = 0.875
"""Part of the shorter side that a center crop takes: 224 of 256."""


class Augmentation(msgspec.Struct, frozen=True):
    """What is done to each image; the numbers are torchvision's."""

    size: int  # side of the square that comes out, in pixels
    crop: str
    """``"rrc"`` (RandomResizedCrop), ``"center"``, ``"whole"``, or ``"padded"``: the whole image, black around it,
    cut at random (RandomCrop)."""
    scale: tuple[float, float]  # least and most part of the image's area that a random crop takes
    ratio: tuple[float, float]  # least and most width of a random crop, of its height
    flip: float  # probability of a mirror image
    jitter: tuple[float, float, float, float]
    """Strength of changes of brightness, contrast, saturation and hue; all 0 for none."""
    shrink: str  # how crops that are larger than ``size`` shrink: ``"bilinear"`` or ``"area"``
    padding: int = 0  # black pixels on each side of ``"padded"``

    def regions(self, height: int, width: int, draws: Draws) -> list[Region]:
        """Return the parts of an image that its crops take."""
        return [self.region(height, width, each) for each in draws]

    def region(self, height: int, width: int, draws: Draws) -> Region:
        """Return the part of an image that a crop takes."""
        if self.crop in ("whole", "padded"):
            return Region(0, 0, height, width)
        if self.crop == "center":
            return _center(height, width, _OF_CENTER * min(height, width), _OF_CENTER * min(height, width))
        area, (least, most) = height * width, self.scale
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for attempt in range(_ATTEMPTS):
            size, shape, down, right = draws[4 * attempt : 4 * attempt + 4].tolist()
            wanted, ratio = area * (least + size * (most - least)), math.exp(low + shape * (high - low))
            w, h = round(math.sqrt(wanted * ratio)), round(math.sqrt(wanted / ratio))
            if 0 < w <= width and 0 < h <= height:
                return Region(int(down * (height - h + 1)), int(right * (width - w + 1)), h, w)
        fits = min(max(width / height, self.ratio[0]), self.ratio[1])  # as torchvision falls back
        return _center(height, width, min(height, width / fits), min(width, height * fits))

    def finish(self, crop: ByteArray, draws: Draws, to: ByteArray) -> None:
        """Resize a crop, mirror it and change its colours, into ``to`` of shape (size, size, 3)."""
        flipped = self.mirrors(draws)
        if not flipped and not any(self.jitter) and self.crop != "padded":
            self.resize(crop, to)
            return
        image = self.resize(crop)
        if self.crop == "padded":
            by = ((self.padding, self.padding), (self.padding, self.padding), (0, 0))
            top, left = (int(draw * (2 * self.padding + 1)) for draw in draws[:2])
            image = np.pad(image, by)[top : top + self.size, left : left + self.size]
        if any(self.jitter):
            image = _jittered(image, self.jitter, draws[4 * _ATTEMPTS + 1 :])
        if flipped:
            cv2.flip(image, 1, dst=to)
        else:
            to[:] = image

    def mirrors(self, draws: Draws) -> bool:
        """Whether a crop is mirrored."""
        return bool(draws[4 * _ATTEMPTS] < self.flip)

    def resize(self, crop: ByteArray, to: ByteArray | None = None) -> Any:
        """Resize a crop to the square, into ``to`` or new memory."""
        size = self.size, self.size
        if self.shrink == "area" and min(crop.shape[:2]) > self.size:
            return cv2.resize(crop, size, dst=to, interpolation=cv2.INTER_AREA)
        # A pixel of what shrinks to less than half is the mean of some, as bilinear looks at four alone.
        down, right = (min(max(side // self.size, 1), _MOST_AVERAGED) for side in crop.shape[:2])
        if max(down, right) > 1:
            crop = np.asarray(cv2.resize(crop, (right * self.size, down * self.size)), np.uint8)
            return cv2.resize(crop, size, dst=to, interpolation=cv2.INTER_AREA)
        return cv2.resize(crop, size, dst=to)


def draws_of(seed: int, cycle: int, sample: int, rows: int, crops: int, first: int = 0) -> Draws:
    """Draw the numbers for some rows of a block, from 0 up to 1: rows x crops x numbers of a crop.

    They are those from row ``first`` on; ``sample`` is the place of the block.
    They are the raw words of PCG64, which are fixed across versions of NumPy (NEP 19).
    """
    words = np.random.SeedSequence((_AUGMENT, cycle, sample, seed % 2**64))
    raw = np.random.PCG64(words).advance(first * crops * _DRAWS).random_raw(rows * crops * _DRAWS)
    return (raw >> np.uint64(11)).astype(np.float64).reshape(rows, crops, _DRAWS) * 2.0**-53


def union(regions: Sequence[Region]) -> Region:
    """Return the smallest region that holds all of these."""
    top, left = min(each.top for each in regions), min(each.left for each in regions)
    bottom = max(each.top + each.height for each in regions)
    right = max(each.left + each.width for each in regions)
    return Region(top, left, bottom - top, right - left)


def with_margin(region: Region, width: int, unit: int) -> Region:
    """Return the region to decode for the colours at a region's edges to be those of the whole image.

    They are interpolated from pixels beside it: of one unit to the left, and two to the right.
    ``width`` is the image's, ``unit`` is the width of a minimum coded unit.
    """
    left = max(0, region.left // unit * unit - unit)
    right = min(width, region.left + region.width + _RIGHT_MARGIN_PX)
    return Region(region.top, left, region.height, right - left)


def _center(height: int, width: int, of_height: float, of_width: float) -> Region:
    h, w = max(1, round(of_height)), max(1, round(of_width))
    return Region((height - h) // 2, (width - w) // 2, h, w)


class _Step(NamedTuple):
    order: float
    kind: int
    draw: float


def _jittered(image: ByteArray, jitter: Sequence[float], draws: Draws) -> ByteArray:
    """Change brightness, contrast, saturation and hue, in a random order, as torchvision's ColorJitter."""
    steps = [_Step(draws[_COLOURS + kind], kind, draws[kind]) for kind in range(_COLOURS) if jitter[kind]]
    for _, kind, draw in sorted(steps):
        strength = jitter[kind]
        low = max(0.0, 1 - strength)
        factor = low + draw * (1 + strength - low)
        if kind == _HUE:
            hsv = np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2HSV_FULL), np.uint8)
            hsv[..., 0] += np.uint8(round((2 * draw - 1) * strength * 256) % 256)
            image = np.asarray(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL), np.uint8)
        elif kind == _BRIGHTNESS:
            image = np.asarray(cv2.convertScaleAbs(image, alpha=factor), np.uint8)
        else:
            grey = np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.uint8)[..., None]
            base = np.full_like(grey, round(float(grey.mean()))) if kind == _CONTRAST else grey
            other = np.broadcast_to(base, image.shape)
            image = np.asarray(cv2.addWeighted(image, factor, other, 1 - factor, 0), np.uint8)
    return image
