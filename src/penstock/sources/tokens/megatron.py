"""The index that Megatron-LM writes beside its tokens (megatron/core/datasets/indexed_dataset.py)."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from penstock.contracts import Numbers
from penstock.errors import BadSetting

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}


class Index(NamedTuple):
    """The content of an ``.idx``, about its ``.bin``."""

    dtype: str  # type of the tokens
    documents: Numbers  # the first token of each document, and the number of tokens


def read_index(path: str, raw: bytes, nbytes: int) -> Index:
    """Return the content of an index, ``raw``, of a ``.bin`` of ``nbytes``; ``path`` is the index's."""
    if raw[:9] != _MAGIC or len(raw) < _HEADER.size:
        raise BadSetting(f"{path} is no index of Megatron's (MMIDIDX); move it away, or name another file")
    _, version, code, sequences, bounds = _HEADER.unpack_from(raw)
    if version != 1 or code not in _TYPES:
        raise BadSetting(f"{path} has version {version} and type {code}; version 1 of whole numbers can be read")
    if len(raw) < _HEADER.size + 12 * sequences + 8 * bounds:
        raise BadSetting(f"{path} was cut short: it lists {sequences:,} sequences, and has {len(raw):,} bytes")
    sizes = np.frombuffer(raw, "<i4", sequences, _HEADER.size)
    pointers = np.frombuffer(raw, "<i8", sequences, _HEADER.size + 4 * sequences)
    firsts = np.frombuffer(raw, "<i8", bounds, _HEADER.size + 12 * sequences)
    ends = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    itemsize = np.dtype(_TYPES[code]).itemsize
    if not np.array_equal(pointers, ends[:-1] * itemsize) or ends[-1] * itemsize != nbytes:
        raise BadSetting(
            f"{path} lists {ends[-1]:,} tokens ({_TYPES[code]}), and the .bin beside it has {nbytes:,} bytes: "
            f"it is the index of another file, or one of the two was cut short"
        )
    if not bounds or firsts[0] != 0 or firsts[-1] != sequences or (np.diff(firsts) < 0).any():
        raise BadSetting(f"{path} says nothing of where documents begin that makes sense")
    return Index(_TYPES[code], ends[firsts])
