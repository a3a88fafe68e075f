"""LitData's chunks whose items are compressed in batches, or one by one, within the file.

Format: litdata 0.2.76, ``streaming/framed_zstd.py``.
"""

from __future__ import annotations

import struct
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np

_MAGIC, _VERSION = b"LDFZ01\0\0", 1
_HEADER = struct.Struct("<8s2H3I")
_FRAME = struct.Struct("<2IQ2I")


def from_batches(chunk: bytes) -> bytes:
    """Return a chunk as it is without compression."""
    arrow: Any = import_module("pyarrow")
    magic, version, _, count, _, frames = _HEADER.unpack_from(chunk)
    if (magic, version) != (_MAGIC, _VERSION):
        raise ValueError(f"it begins with {magic!r}, version {version}")
    offsets = np.frombuffer(chunk, "<u4", count + 1, _HEADER.size)
    at = _HEADER.size + offsets.nbytes
    items: list[bytes] = []
    for frame in range(frames):
        _, _, start, nbytes, size = _FRAME.unpack_from(chunk, at + frame * _FRAME.size)
        packed = chunk[start : start + nbytes]
        items.append(arrow.decompress(packed, decompressed_size=size, codec="zstd", asbytes=True))
    return _chunk(np.diff(offsets.astype(np.int64)), b"".join(items))


def from_samples(chunk: bytes) -> bytes:
    """Return a chunk as it is without compression; errors are those of ``from_batches``."""
    arrow: Any = import_module("pyarrow")
    (count,) = struct.unpack_from("<I", chunk)
    offsets: list[int] = np.frombuffer(chunk, "<u4", count + 1, 4).tolist()
    items: list[bytes] = []
    for start, end in pairwise(offsets):
        with arrow.CompressedInputStream(arrow.BufferReader(chunk[start:end]), "zstd") as stream:
            items.append(stream.read())
    return _chunk(np.array([len(item) for item in items]), b"".join(items))


def _chunk(sizes: Any, items: bytes) -> bytes:
    offsets = np.cumsum([4 * len(sizes) + 8, *sizes])
    if offsets[-1] != 4 * len(sizes) + 8 + len(items) or offsets[-1] >= 1 << 32:
        raise ValueError(f"its items take {sum(sizes):,} bytes, and it has {len(items):,}")
    return struct.pack("<I", len(sizes)) + offsets.astype("<u4").tobytes() + items
