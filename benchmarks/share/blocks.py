"""Blocks that lie ready in memory, so that only their delivery costs time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

ROWS = 64
"""Samples per block or batch."""

_DISTINCT = 4


class Blocks:
    """``count`` blocks of ``nbytes`` per pass: a few distinct ones, over and over."""

    def __init__(self, nbytes: int, count: int) -> None:
        rng = np.random.default_rng(0)
        self._blocks: list[npt.NDArray[np.uint8]] = [
            rng.integers(0, 256, (ROWS, nbytes // ROWS), np.uint8) for _ in range(_DISTINCT)
        ]
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[npt.NDArray[np.uint8]]:
        for i in range(self._count):
            yield self._blocks[i % _DISTINCT]
