"""Images that were stored as Pillow's raw pixels."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from penstock.sources.records.values import pixels

Image = pytest.importorskip("PIL.Image")


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "YCbCr", "HSV", "LAB", "RGBA", "CMYK"])
def test_an_image_of_each_mode_is_what_pillow_makes_of_it(mode: str) -> None:
    image = Image.new("RGB", (3, 5), (1, 2, 3)).convert("L" if mode == "LA" else "RGB")
    image = Image.new(mode, (3, 5), 7) if mode == "LAB" else image.convert(mode)
    stored = struct.pack("<3I", 3, 5, len(mode)) + mode.encode() + image.tobytes()
    assert np.array_equal(pixels(stored).squeeze(), np.asarray(image))


def test_a_mode_of_other_pixels_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="mode 'F' is none of L, LA"):
        pixels(struct.pack("<3I", 1, 1, 1) + b"F" + bytes(4))
