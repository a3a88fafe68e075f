"""Whole images, by simplejpeg for JPEG and by OpenCV for all else."""

from __future__ import annotations

import cv2
import numpy as np
import simplejpeg  # pyright: ignore[reportMissingTypeStubs]

from penstock.contracts import ByteArray, Region

_CUT_SHORT = "Premature end"
JPEG_END = b"\xff\xd9"
_FLAGS = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION


class WholeDecoder:
    """Decodes a whole JPEG for each region of it."""

    name = f"simplejpeg {simplejpeg.__version__}, whole images"

    def size(self, encoded: bytes) -> tuple[int, int]:
        height, width, *_ = simplejpeg.decode_jpeg_header(encoded)
        return int(height), int(width)

    def decode(self, encoded: bytes, region: Region) -> ByteArray:
        top, left, height, width = region
        return whole_jpeg(encoded)[top : top + height, left : left + width]


def size_of(encoded: bytes) -> tuple[int, int]:
    """Return height and width of an image.

    Raises:
        ValueError: it is none.
    """
    if encoded.startswith(b"\xff\xd8"):
        return WholeDecoder().size(encoded)
    height, width, _ = whole_image(encoded).shape
    return height, width


def whole_jpeg(encoded: bytes) -> ByteArray:
    """Decode a JPEG of any kind; damage is an error where an end is missing, or pixels, as with Pillow.

    Raises:
        ValueError: it cannot be decoded.
    """
    try:
        return simplejpeg.decode_jpeg(encoded, "RGB")
    except ValueError as error:
        if _CUT_SHORT in str(error):
            raise
        damage = error
    try:
        # What tells of no error leaves the memory as it was where it has decoded nothing.
        height, width = WholeDecoder().size(encoded)
        dark, light = (
            simplejpeg.decode_jpeg(
                encoded, "RGB", strict=False, buffer=np.full((height, width, 3), value, np.uint8)
            )
            for value in (0, 255)
        )
    except ValueError:  # four colours, which OpenCV turns into three
        return whole_image(encoded)
    if not np.array_equal(dark, light):
        raise damage
    return dark


def whole_image(encoded: bytes) -> ByteArray:
    """Decode an image of any format that OpenCV knows.

    Raises:
        ValueError: it cannot be decoded.
    """
    try:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), _FLAGS)
    except cv2.error as error:
        raise ValueError(str(error).strip()) from None
    if image is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise ValueError("no image of a known format")
    return np.asarray(image, np.uint8)
