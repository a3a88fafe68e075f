"""Which samples a block's rows are, and which of its rows it has, as a message has them."""

from __future__ import annotations

import numpy as np

from penstock.contracts import Ids

MOST_IDS_BYTES = 64 << 10
"""The ids of a block of more rows do not go into its message, and nobody gets them."""
MOST_NAMED_ROWS = MOST_IDS_BYTES // 8


def encode_ids(ids: Ids | None) -> bytes:
    """Return ids as numbers of 4 or 8 bytes, little-endian; none if they are unknown, or too many."""
    if ids is None or ids.nbytes > MOST_IDS_BYTES:
        return b""
    return ids.astype("<u4" if ids.max(initial=0) < 2**32 else "<i8", copy=False).tobytes()


def decode_ids(encoded: bytes, rows: int) -> Ids:
    """Return the ids of ``rows`` rows."""
    return np.frombuffer(encoded, "<u4" if len(encoded) == 4 * rows else "<i8").astype(np.int64)


def encode_kept(kept: Ids | None, rows: int) -> bytes:
    """Return which of a block's rows it has, a bit for each row; none if it has all."""
    if kept is None:
        return b""
    mask = np.zeros(rows, np.bool_)
    mask[kept] = True
    return np.packbits(mask, bitorder="little").tobytes()


def decode_kept(encoded: bytes) -> Ids:
    """Return which of a block's rows it has, rising."""
    return np.flatnonzero(np.unpackbits(np.frombuffer(encoded, np.uint8), bitorder="little"))
