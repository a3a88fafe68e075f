"""Columns of numbers, compressed without loss: to the bit, a float64 comes back as it was."""

from __future__ import annotations

import msgspec
import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_SCALES = (1, 10, 100, 1_000, 10_000, 1_000_000, 1_000_000_000)
"""Factors that may turn values into whole numbers: clock ticks, percent, units of SI."""
_EXACT = 2.0**53


class Column(msgspec.Struct, frozen=True, array_like=True):
    """Numbers of 8 bytes, compressed: all first bytes, all second bytes, and so on."""

    scale: int  # what whole numbers, stored as differences, are divided by; 0 for floats as they are
    content: bytes


def coded_ints(numbers: Ints, scale: int = 1) -> Column:
    """Compress whole numbers."""
    steps = np.diff(numbers, prepend=0)
    return Column(scale, _compressed((steps << 1) ^ (steps >> 63)))


def coded_floats(values: Floats) -> Column:
    """Compress values: as whole numbers where that loses nothing, else as they are."""
    with np.errstate(all="ignore"):
        for scale in _SCALES:
            whole = np.rint(values * scale)
            if not np.abs(whole).max(initial=0) < _EXACT:  # NaN, infinities, too large
                break
            numbers = whole.astype(np.int64)
            if np.array_equal((numbers / scale).view(np.int64), values.view(np.int64)):
                return coded_ints(numbers, scale)
    return Column(0, _compressed(values))


def decoded_ints(column: Column) -> Ints:
    """Return the whole numbers of a column."""
    steps = _decompressed(column.content).view(np.uint64)
    return np.cumsum((steps >> np.uint64(1)).view(np.int64) ^ -(steps & np.uint64(1)).view(np.int64))


def decoded_floats(column: Column) -> Floats:
    """Return the values of a column."""
    return decoded_ints(column) / column.scale if column.scale else _decompressed(column.content).view(np.float64)


def _compressed(numbers: Ints | Floats) -> bytes:
    planes = numbers.view(np.uint8).reshape(-1, 8).T.tobytes()  # bytes that are alike lie together
    return isal_zlib.compress(planes, isal_zlib.ISAL_BEST_COMPRESSION)  # pyright: ignore[reportUnknownMemberType]


def _decompressed(content: bytes) -> NDArray[np.uint8]:
    planes = np.frombuffer(isal_zlib.decompress(content), np.uint8)  # pyright: ignore[reportUnknownMemberType]
    return planes.reshape(8, -1).T.ravel()
