"""Turns samples of named columns, and the bytes of single values, into NumPy's values, text and plain JSON."""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
import numpy.typing as npt

JPEG, PNG, IMAGE, BYTES, TEXT, JSON = "jpeg", "png", "image", "bytes", "str", "json"
"""Types of fields, for people: images as they are encoded, other bytes, text, and what JSON holds."""

_DAMAGE = (struct.error, ArithmeticError, LookupError, RecursionError, MemoryError, TypeError)
"""What is raised for damaged bytes, beside ValueError."""
_CHANNELS = {"L": 1, "LA": 2, "RGB": 3, "YCbCr": 3, "HSV": 3, "LAB": 3, "RGBA": 4, "CMYK": 4}


class Column(NamedTuple):
    """A column of samples.

    Attributes:
        name: Its name.
        type: Its type, in a word.
        read: From the bytes of a value to the value; ``ValueError`` for others.
        nbytes: Size of each value; None if samples say it.
    """

    name: str
    type: str
    read: Callable[[bytes], Any]
    nbytes: int | None = None


class ColumnParser(msgspec.Struct, frozen=True):
    """Parses samples that hold sizes, 32 bits each, and then the bytes of one column after another.

    Attributes:
        columns: The columns, in that order.
    """

    columns: tuple[Column, ...]

    def __call__(self, sample: bytes) -> dict[str, Any]:
        return without_surprise(self._parsed, sample)

    @property
    def fields(self) -> Mapping[str, str]:
        """The type of each column."""
        return {column.name: column.type for column in self.columns}

    def _parsed(self, sample: bytes) -> dict[str, Any]:
        said = sum(column.nbytes is None for column in self.columns)
        sizes = iter(struct.unpack_from(f"<{said}I", sample))
        at, values = 4 * said, dict[str, Any]()
        for name, _, read, nbytes in self.columns:
            end = at + (next(sizes) if nbytes is None else nbytes)
            if end > len(sample):
                raise ValueError(f"the column {name} ends at byte {end:,} of a sample of {len(sample):,}")
            try:
                values[name] = read(sample[at:end])
            except (ValueError, *_DAMAGE) as error:
                raise ValueError(f"the column {name} cannot be read: {error}") from None
            at = end
        if at != len(sample):
            raise ValueError(f"the columns take {at:,} bytes of a sample of {len(sample):,}")
        return values


def without_surprise(parse: Callable[[bytes], dict[str, Any]], sample: bytes) -> dict[str, Any]:
    """Parse a sample; whatever damaged bytes raise becomes a ``ValueError``."""
    try:
        return parse(sample)
    except _DAMAGE as error:
        raise ValueError(f"it is damaged: {error}") from None


class Scalar(msgspec.Struct, frozen=True):
    """Reads one number of a type of NumPy's."""

    dtype: str

    def __call__(self, data: bytes) -> Any:
        kind = np.dtype(self.dtype)
        if len(data) != kind.itemsize:
            raise ValueError(f"{len(data):,} bytes are no {self.dtype}")
        return np.frombuffer(data, kind)[0]


class Shaped(msgspec.Struct, frozen=True):
    """Reads an array of known type; of one axis, unless the shape is known too."""

    dtype: str
    shape: tuple[int, ...] = (-1,)

    def __call__(self, data: bytes) -> Any:
        return shaped(data, self.dtype, self.shape)


def shaped(data: bytes, dtype: str, shape: Sequence[int]) -> npt.NDArray[Any]:
    """Return an array that may not be written to.

    Raises:
        ValueError: the bytes are not as many as that takes.
    """
    nbytes = np.dtype(dtype).itemsize * math.prod(shape)
    if len(data) != nbytes and tuple(shape) != (-1,):
        raise ValueError(f"{len(data):,} bytes are no array of {dtype} of shape {tuple(shape)}")
    return np.frombuffer(data, dtype).reshape(shape)


def same(data: bytes) -> bytes:
    """Return bytes as they are stored."""
    return data


def text(data: bytes) -> str:
    """Return UTF-8."""
    return data.decode()


def whole_number(data: bytes) -> int:
    """Return a whole number of any size, written in digits."""
    return int(data.decode())


def number(data: bytes) -> float:
    """Return a number that is written in digits."""
    return float(data.decode())


def plain(data: bytes) -> Any:
    """Return what JSON says."""
    return json.loads(data.decode())


def pixels(data: bytes) -> npt.NDArray[Any]:
    """Return an image of Pillow's that was stored raw, of 8 bits a channel: width, height, mode, and its pixels."""
    width, height, nbytes = struct.unpack_from("<3I", data)
    mode = data[12 : 12 + nbytes].decode()
    if mode not in _CHANNELS:
        raise ValueError(f"Pillow's mode {mode[:20]!r} is none of {', '.join(_CHANNELS)}")
    return shaped(data[12 + nbytes :], "uint8", (height, width, _CHANNELS[mode]))


def npy(data: bytes) -> npt.NDArray[Any]:
    """Return the array of a ``.npy``; pickled ones are refused."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"it has version {version} of NumPy's format")
    try:
        shape, by_columns, dtype = cast("tuple[tuple[int, ...], bool, Any]", readers[version](file))
    except SyntaxError as error:  # of the header, which is Python
        raise ValueError(str(error)) from None
    body = data[file.tell() :]
    if dtype.hasobject:
        raise ValueError("it is pickled, and nothing is unpickled")
    if min(shape, default=0) < 0 or len(body) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(body):,} bytes are no array of {dtype} of shape {shape}")
    return np.ndarray(shape, dtype, body, order="F" if by_columns else "C")
