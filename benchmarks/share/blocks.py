"""Blocks that lie ready in memory, so that nothing but their delivery costs anything."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

ROWS = 64
"""Samples of a block or batch."""

_DISTINCT = 4


class Blocks:
    """Blocks of ``nbytes``, the same few again and again, ``count`` to a pass."""

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
