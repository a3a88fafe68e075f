"""A set of samples as one bit for each sample of the data set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.contracts import ByteArray, Ids

Mask = npt.NDArray[np.bool_]


class Bitmap:
    """Some samples of a data set, or what several such sets hold together.

    Args:
        packed: A bit for each sample, the first one's lowest.
        digests: Digests of the selections that it consists of.
    """

    def __init__(self, packed: ByteArray, digests: frozenset[str]) -> None:
        self.packed = packed
        self.digests = digests
        self._covered: dict[frozenset[str], bool] = {}

    def __len__(self) -> int:
        return int.from_bytes(self.packed.tobytes(), "little").bit_count()

    def holds(self, ids: Ids) -> Mask:
        """Return which of the ids are in the set."""
        return (self.packed[ids >> 3] >> (ids & 7).astype(np.uint8) & 1).view(np.bool_)

    def covers(self, other: Bitmap) -> bool:
        """Whether all samples of another set of the same length are in this one."""
        if other.digests <= self.digests:
            return True
        if other.digests not in self._covered:
            self._covered[other.digests] = not (other.packed & ~self.packed).any()
        return self._covered[other.digests]


def union(sets: Sequence[Bitmap]) -> Bitmap:
    """Return what sets of one length hold together."""
    packed = np.bitwise_or.reduce([each.packed for each in sets])
    return Bitmap(packed, frozenset[str]().union(*(each.digests for each in sets)))
