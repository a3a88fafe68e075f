"""libjpeg-turbo, asked for a region of an image: rows above it are skipped, columns beside it not transformed.

Manual: turbojpeg.h of libjpeg-turbo 3, ``tj3SetCroppingRegion``. Nothing of it is on PyPI in good order, so the
library is looked for on the machine.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from penstock.contracts import ByteArray, Region
from penstock.errors import BadSetting
from penstock.sources.images.crops import with_margin

OVERRIDE = "PENSTOCK_TURBOJPEG"
"""Names a library to use whatever its version: one before 3.0.2 has known holes, and is for trusted files only."""

_DECOMPRESS = 1
_RGB = 0
_SUBSAMPLING, _WIDTH, _HEIGHT, _COLOURSPACE, _MAX_MEMORY = 4, 5, 6, 8, 23
_CMYK, _YCCK = 3, 4
_UNIT_PX = (8, 16, 16, 8, 8, 32, 8)
"""Width of a minimum coded unit, by subsampling: 4:4:4, 4:2:2, 4:2:0, grey, 4:4:0, 4:1:1, 4:4:1."""


class _Region(ctypes.Structure):
    _fields_ = (("x", ctypes.c_int), ("y", ctypes.c_int), ("w", ctypes.c_int), ("h", ctypes.c_int))


class TurboDecoder:
    """Decodes regions by libjpeg-turbo."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library  # the library, as ``turbo_library`` found it
        self._pixels = np.empty(0, np.uint8)
        self.name = f"libjpeg-turbo, regions ({Path(library._name).name})"

    def size(self, encoded: bytes) -> tuple[int, int]:
        with self._opened(encoded) as handle:
            return self._library.tj3Get(handle, _HEIGHT), self._library.tj3Get(handle, _WIDTH)

    def decode(self, encoded: bytes, region: Region) -> ByteArray:
        library = self._library
        with self._opened(encoded) as handle:
            height, width = library.tj3Get(handle, _HEIGHT), library.tj3Get(handle, _WIDTH)
            subsampling: int = library.tj3Get(handle, _SUBSAMPLING)
            if not 0 <= subsampling < len(_UNIT_PX) or library.tj3Get(handle, _COLOURSPACE) in (_CMYK, _YCCK):
                raise ValueError("its kind of colours is not decoded by regions")
            wide = with_margin(region, width, _UNIT_PX[subsampling])
            box = _Region(wide.left, wide.top, wide.width, min(height - wide.top, wide.height))
            if library.tj3SetCroppingRegion(handle, box):
                raise ValueError(self._error(handle))
            nbytes = box.w * box.h * 3
            if len(self._pixels) < nbytes:
                self._pixels = np.empty(nbytes, np.uint8)
            to = self._pixels[:nbytes].reshape(box.h, box.w, 3)
            if library.tj3Decompress8(handle, encoded, len(encoded), to.ctypes.data, 0, _RGB):
                raise ValueError(self._error(handle))  # or a mere warning: who decodes the whole knows which
        return to[:, region.left - wide.left :][:, : region.width]

    @contextmanager
    def _opened(self, encoded: bytes) -> Generator[ctypes.c_void_p]:
        """Give a handle that has read the header.

        Each image has its own: one that has seen a broken header takes the next image for more of the one before.
        """
        library = self._library
        handle = ctypes.c_void_p(library.tj3Init(_DECOMPRESS))
        try:
            if library.tj3DecompressHeader(handle, encoded, len(encoded)):
                raise ValueError(self._error(handle))
            if library.tj3Get(handle, _WIDTH) < 1:
                raise ValueError("it has no header of an image")
            yield handle
        finally:
            library.tj3Destroy(handle)

    def _error(self, handle: ctypes.c_void_p) -> str:
        return self._library.tj3GetErrorStr(handle).decode(errors="replace")


def turbo_library() -> ctypes.CDLL | None:
    """Return libjpeg-turbo 3.0.2 or later, or what ``PENSTOCK_TURBOJPEG`` names; None if there is none."""
    named = os.environ.get(OVERRIDE)
    for path in [named] if named else _candidates():
        try:
            library = ctypes.CDLL(path)
            library.tj3Init.restype = ctypes.c_void_p
            library.tj3Destroy.argtypes = [ctypes.c_void_p]
            library.tj3GetErrorStr.restype = ctypes.c_char_p
            library.tj3GetErrorStr.argtypes = [ctypes.c_void_p]
            library.tj3Get.argtypes = [ctypes.c_void_p, ctypes.c_int]
            library.tj3Set.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
            library.tj3DecompressHeader.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
            library.tj3SetCroppingRegion.argtypes = [ctypes.c_void_p, _Region]
            data: Any = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
            library.tj3Decompress8.argtypes = [*data, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
        except (OSError, AttributeError) as error:
            if named:
                raise BadSetting(f"{OVERRIDE}={named}: this is no libjpeg-turbo 3: {error}") from None
            continue
        if named or _is_recent(library):
            return library
    return None


def _candidates() -> Iterator[str]:
    """Where it may lie: in an environment of conda's, or where the linker finds it."""
    yield from map(str, (Path(sys.prefix) / "lib").glob("libturbojpeg.so*"))
    if found := ctypes.util.find_library("turbojpeg"):
        yield found


def _is_recent(library: ctypes.CDLL) -> bool:
    """Whether it is 3.0.2 or later, which takes a limit on its memory."""
    handle = ctypes.c_void_p(library.tj3Init(_DECOMPRESS))
    try:
        return library.tj3Set(handle, _MAX_MEMORY, 1024) == 0
    finally:
        library.tj3Destroy(handle)
