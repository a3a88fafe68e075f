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


class Column(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Numbers, compressed.

    Attributes:
        count: How many.
        whole: Whether they are whole numbers, or floats.
        width: Bytes of each before they were compressed: all first bytes, all second bytes, and so on.
        order: How often differences were taken.
        factor: What each whole number is multiplied by.
        scale: What it is divided by then, if it stands for a float.
        corrected: Whether a byte follows for each number: by how many neighbouring floats its value is off.
        content: The bytes.
    """

    count: int
    whole: bool
    width: int
    order: int = 0
    factor: int = 1
    scale: int = 1
    corrected: bool = False
    content: bytes


def coded_ints(numbers: Ints, scale: int = 1, steps: Ints | None = None) -> Column:
    """Compress whole numbers: themselves, their differences or the differences of these, whichever is smallest."""
    factor = int(np.gcd.reduce(numbers, initial=0)) or 1
    rest = numbers // factor
    corrections = b"" if steps is None else steps.astype(np.int8).tobytes()
    columns: list[Column] = []
    for order in range(3):
        zigzag = ((rest << 1) ^ (rest >> 63)).astype("<u8")
        width = max(1, (int(zigzag.max(initial=0)).bit_length() + 7) // 8)
        columns.append(
            Column(
                count=len(rest),
                whole=True,
                width=width,
                order=order,
                factor=factor,
                scale=scale,
                corrected=steps is not None,
                content=_compressed(_planes(zigzag, width) + corrections),
            )
        )
        rest = np.diff(rest, prepend=0)
    return min(columns, key=lambda column: len(column.content))


def coded_floats(values: Floats) -> Column:
    """Compress values: as whole numbers or floats of 4 bytes where that loses nothing, else as they are."""
    with np.errstate(all="ignore"):
        for scale in _SCALES:  # sums and differences lie near such numbers, some floats away
            whole = np.rint(values * scale)
            if not np.abs(whole).max(initial=0) < _EXACT:  # NaN, infinities, too large
                break
            integers = whole.astype(np.int64)
            steps = values.view(np.int64) - (integers / scale).view(np.int64)
            if ((steps >= -128) & (steps < 128)).all():
                return coded_ints(integers, scale, steps if steps.any() else None)
        short = values.astype("<f4")
    exact = np.array_equal(short.astype(np.float64).view(np.int64), values.view(np.int64))
    stored = short if exact else values.astype("<f8")
    content = _compressed(_planes(stored, stored.itemsize))
    return Column(count=len(stored), whole=False, width=stored.itemsize, content=content)


def decoded_ints(column: Column) -> Ints:
    """Return the whole numbers of a column."""
    zigzag = _numbers(column, 8).view("<u8")
    numbers = (zigzag >> np.uint64(1)).view(np.int64) ^ -(zigzag & np.uint64(1)).view(np.int64)
    for _ in range(column.order):
        np.cumsum(numbers, out=numbers)
    return numbers * column.factor


def decoded_floats(column: Column) -> Floats:
    """Return the values of a column."""
    if not column.whole:
        return _numbers(column, column.width).view(f"<f{column.width}").astype(np.float64)
    values = decoded_ints(column) / column.scale
    if column.corrected:
        values.view(np.int64)[:] += np.frombuffer(_decompressed(column.content)[-column.count :], np.int8)
    return values


def _compressed(content: bytes) -> bytes:
    return isal_zlib.compress(content, isal_zlib.ISAL_BEST_COMPRESSION)  # pyright: ignore[reportUnknownMemberType]


def _decompressed(content: bytes) -> bytes:
    return isal_zlib.decompress(content)  # pyright: ignore[reportUnknownMemberType]


def _planes(numbers: NDArray[np.generic], width: int) -> bytes:
    """Return all first bytes of numbers, then all second bytes, and so on: those that are alike lie together."""
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, numbers.itemsize)[:, :width].T.tobytes()


def _numbers(column: Column, itemsize: int) -> NDArray[np.uint8]:
    planes = np.frombuffer(_decompressed(column.content), np.uint8, column.width * column.count)
    numbers = np.zeros((column.count, itemsize), np.uint8)
    numbers[:, : column.width] = planes.reshape(column.width, column.count).T
    return numbers.reshape(-1)
