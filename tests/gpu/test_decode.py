"""Decoding on a GPU by torchvision: pixels against the CPU's, and a source with ``gpu="auto"``."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

cv2 = pytest.importorskip("cv2")
simplejpeg = pytest.importorskip("simplejpeg")
torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

from penstock import ImageSource  # noqa: E402
from penstock.contracts import Cursor, Region  # noqa: E402
from penstock.sources.images.batches import Crop  # noqa: E402
from penstock.sources.images.crops import Augmentation  # noqa: E402
from penstock.sources.images.gpu import TorchvisionDevice  # noqa: E402

HOW = Augmentation(64, "rrc", (0.08, 1.0), (3 / 4, 4 / 3), 0.5, (0.0, 0.0, 0.0, 0.0), "bilinear")


def jpeg(seed: int, subsampling: str) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (60 + seed, 90 + 3 * seed, 3), np.uint8)
    blurred = np.ascontiguousarray(cv2.GaussianBlur(pixels, (7, 7), 0))
    if subsampling == "Gray":
        return simplejpeg.encode_jpeg(np.ascontiguousarray(blurred[..., :1]), colorspace="Gray")
    return simplejpeg.encode_jpeg(blurred, colorsubsampling=subsampling)


@pytest.mark.parametrize("subsampling", ["444", "Gray"])
def test_crops_without_subsampled_colours_are_the_cpus_bit_for_bit(subsampling: str) -> None:
    device = TorchvisionDevice(64)
    images = [jpeg(seed, subsampling) for seed in range(128)]
    sizes = [(60 + seed, 90 + 3 * seed) for seed in range(128)]
    for turn in range(3):  # memory is used again
        device.synchronize()
        frames = device.decode(images, sizes)
        device.synchronize()
        crops = [Crop(n, Region(n % 7, turn, 50, 40 + n), n % 2 == 1) for n in range(128)]
        made = device.finish(frames, crops)
        device.synchronize()
        for image, crop, pixels in zip(images, crops, made, strict=True):
            top, left, height, width = crop.region
            whole = simplejpeg.decode_jpeg(image, "RGB")
            resized = HOW.resize(whole[top : top + height, left : left + width])
            assert np.array_equal(pixels, resized[:, ::-1] if crop.mirrored else resized)


def test_one_bad_image_fails_alone() -> None:
    device = TorchvisionDevice(64)
    good, damaged = jpeg(0, "444"), jpeg(1, "444")[:300] + b"\xff\xd9"
    frames = device.decode([good, b"\xff\xd8\xff\xd9", damaged, good], [(60, 90), (1, 1), (2, 2), (60, 90)])
    assert [frame is None for frame in frames] == [False, True, True, False]


@pytest.mark.parametrize("subsampling", ["444", "420"])
def test_a_source_has_the_gpu_decode_and_pixels_are_near_the_cpus(tmp_path: Path, subsampling: str) -> None:
    for seed in range(100):
        (tmp_path / f"{seed:03}.jpg").write_bytes(jpeg(seed, subsampling))
    with (
        closing(ImageSource(tmp_path, size=64, batch_size=96, workers=1)) as alone,
        closing(ImageSource(tmp_path, size=64, batch_size=96, workers=1, gpu="auto")) as source,
    ):
        until = time.monotonic() + 50
        for cycle in range(10**6):
            mine, its = (
                np.concatenate([block.tree.copy() for block in each.open(Cursor(cycle, 0))]).astype(int)
                for each in (source, alone)
            )
            apart = np.abs(mine - its)
            assert apart.max() == 0 if subsampling == "444" else apart.mean() < 3
            standing = source._blocks.beside
            assert standing is not None and not standing.lost
            if source._caching.sides.part > 0.2:
                return
            assert time.monotonic() < until
