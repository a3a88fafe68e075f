"""OpenCV, told before it is loaded how many pixels it may decode; it reads that once, from the environment."""

import os

__all__ = ["MOST_PIXELS", "cv2"]

MOST_PIXELS = 178_956_970
"""As for Pillow: an image that says that it has more is taken for a decompression bomb."""
_LIMIT = "OPENCV_IO_MAX_IMAGE_PIXELS"

_before = os.environ.get(_LIMIT)
os.environ[_LIMIT] = str(MOST_PIXELS)
import cv2  # noqa: E402

del os.environ[_LIMIT]
if _before is not None:
    os.environ[_LIMIT] = _before
