"""The contract of sources over images of one grey each, whose labels lie beside them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from tests.sources.images.pictures import jpeg

from penstock.testing.source import SourceContract


def grey_images(count: int) -> list[bytes]:
    """Images by their number: of ten times that grey."""
    return [jpeg(np.full((20, 24, 3), 10 * i, np.uint8), "444") for i in range(count)]


class OfGreyImages(SourceContract):
    """Tests of a source of some of them, whose label is their number modulo 5.

    Attributes:
        count: How many.
    """

    keeps_workers = True
    count = 0

    def expected(self) -> Counter[Any]:
        return Counter((10 * i, i % 5) for i in range(self.count))

    def rows_of(self, tree: Any) -> list[Any]:
        images, labels = tree
        levels = np.round(images.mean(axis=(1, 2, 3)) / 10).astype(int) * 10
        return list(zip(levels.tolist(), labels.tolist(), strict=True))
