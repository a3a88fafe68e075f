"""Turns samples of named columns, and the bytes of single values, into NumPy's values, text and plain JSON."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

JPEG, PNG, IMAGE, BYTES, TEXT, JSON = "jpeg", "png", "image", "bytes", "str", "json"
"""Types of fields, for people: images as they are encoded, other bytes, text, and what JSON holds."""

Reader = Callable[[bytes], Any]
"""From the bytes of a value to the value; ``ValueError`` for others."""
DAMAGE = (struct.error, ArithmeticError, LookupError, RecursionError, TypeError)
"""What is raised for damaged bytes, beside ValueError."""
_NPY = re.compile(
    rb"\{'descr': '([<>|=]?[biufcSUmMVO]\d*(?:\[\w+\])?)', "
    rb"'fortran_order': (True|False), 'shape': \(([\d, ]*)\), \}\s*"
)
_CHANNELS = {"L": 1, "LA": 2, "RGB": 3, "YCbCr": 3, "HSV": 3, "LAB": 3, "RGBA": 4, "CMYK": 4}


class StoredColumn(NamedTuple):
    """A column of samples."""

    name: str
    type: str  # its type, in a word
    read: Reader  # what reads a value
    nbytes: int | None = None  # size of each value; None if samples say it


class ColumnParser(msgspec.Struct, frozen=True):
    """Parses samples that hold sizes, 32 bits each, and then the bytes of one column after another."""

    columns: tuple[StoredColumn, ...]  # the columns, in that order
    wanted: frozenset[str] | None = None  # names of those that are parsed; None for all

    def __call__(self, sample: bytes) -> dict[str, Any]:
        return without_surprise(self._parsed, sample)

    @property
    def fields(self) -> Mapping[str, str]:
        """The type of each column."""
        return {column.name: column.type for column in self.columns}

    def only(self, fields: Collection[str]) -> ColumnParser:
        """Return a parser of these columns alone."""
        return ColumnParser(self.columns, frozenset(fields))

    def _parsed(self, sample: bytes) -> dict[str, Any]:
        said = sum(column.nbytes is None for column in self.columns)
        sizes = iter(struct.unpack_from(f"<{said}I", sample))
        at, values = 4 * said, dict[str, Any]()
        for name, _, read, nbytes in self.columns:
            end = at + (next(sizes) if nbytes is None else nbytes)
            if end > len(sample):
                raise ValueError(f"the column {name} ends at byte {end:,} of a sample of {len(sample):,}")
            try:
                if self.wanted is None or name in self.wanted:
                    values[name] = read(sample[at:end])
            except (ValueError, *DAMAGE) as error:
                raise ValueError(f"the column {name} cannot be read: {error}") from None
            at = end
        if at != len(sample):
            raise ValueError(f"the columns take {at:,} bytes of a sample of {len(sample):,}")
        return values


class Unread(msgspec.Struct, frozen=True):
    """Refuses values of a type that is not read, where they are wanted."""

    written: str

    def __call__(self, data: bytes) -> Any:
        why = ", as nothing is unpickled" if "pkl" in self.written or "pickle" in self.written else ""
        raise ValueError(f"its type {self.written!r} is not read{why}: leave it out, or write it anew as another")


def without_surprise(parse: Callable[[bytes], dict[str, Any]], sample: bytes) -> dict[str, Any]:
    """Parse a sample; whatever damaged bytes raise becomes a ``ValueError``."""
    try:
        return parse(sample)
    except DAMAGE as error:
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
    """Return an array that may not be written to."""
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


def plain(data: bytes) -> Any:
    """Return what JSON says."""
    return json.loads(data.decode())


def pixels(data: bytes) -> npt.NDArray[Any]:
    """Return an image of Pillow's, of 8 bits a channel, that was stored raw: width, height, mode and pixels."""
    width, height, nbytes = struct.unpack_from("<3I", data)
    mode = data[12 : 12 + nbytes].decode()
    if mode not in _CHANNELS:
        raise ValueError(f"Pillow's mode {mode[:20]!r} is none of {', '.join(_CHANNELS)}")
    return shaped(data[12 + nbytes :], "uint8", (height, width, _CHANNELS[mode]))


def npy(data: bytes) -> npt.NDArray[Any]:
    """Return the array of a ``.npy``: of numbers, dates or text, which are not pickled."""
    long = data[6:7] != b"\1"  # from version 2 on
    start = 12 if long else 10
    end = start + struct.unpack_from("<I" if long else "<H", data, 8)[0]
    header = _NPY.fullmatch(data[start:end])
    if header is None or not data.startswith(b"\x93NUMPY"):
        raise ValueError("it is no array in NumPy's format, or one of records")
    kind, by_columns = np.dtype(header[1].decode()), header[2] == b"True"
    if kind.hasobject:
        raise ValueError("it is an array of objects, which are pickled; nothing is unpickled")
    shape = tuple(int(each) for each in header[3].split(b",") if each.strip())
    values = shaped(data[end:], kind.str, shape[::-1] if by_columns else shape)
    return values.T if by_columns else values
