"""Regions are the pixels of whole images, bit for bit; crops are torchvision's and depend on their place alone."""

from __future__ import annotations

import io
import math
import random
import sys
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.sources.images.pictures import (
    BY_REGIONS,
    SIZES,
    encoded,
    jpeg,
    jpegs,
    needs_nvimagecodec,
    needs_turbo,
    noise,
    turbo_path,
)

from penstock.contracts import Decoder, Region
from penstock.errors import BadSetting, SourceError
from penstock.sources.images.crops import Augmentation, draws_of, union
from penstock.sources.images.decoders import DECODER, WholeDecoder, decoder, whole_image, whole_jpeg
from penstock.sources.images.turbo import OVERRIDE, turbo_library

SAMPLE = Path(__file__).parents[4] / "shared" / "data" / "imagenet-sample.tar"


@pytest.fixture(scope="module", params=BY_REGIONS)
def by_regions(request: pytest.FixtureRequest) -> Decoder:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DECODER, request.param)
        patch.setenv(OVERRIDE, str(turbo_path()))
        return decoder()


def regions(height: int, width: int, seed: int, count: int) -> Iterator[Region]:
    choose = random.Random(seed)
    for _ in range(count):
        h, w = choose.randint(1, height), choose.randint(1, width)
        yield Region(choose.randint(0, height - h), choose.randint(0, width - w), h, w)


def assert_same(by_regions: Decoder, data: bytes, seed: int, count: int) -> None:
    whole = whole_jpeg(data)
    assert by_regions.size(data) == WholeDecoder().size(data) == whole.shape[:2]
    for region in regions(*whole.shape[:2], seed, count):
        top, left, height, width = region
        pixels = by_regions.decode(data, region)
        assert np.array_equal(pixels, whole[top : top + height, left : left + width]), region


@pytest.mark.parametrize("kind", jpegs())
def test_regions_of_a_jpeg_of_any_kind_are_those_of_the_whole(by_regions, kind):
    for seed, size in enumerate(SIZES):
        assert_same(by_regions, jpegs()[kind](noise(*size, seed)), seed, 30)


@pytest.mark.skipif(not SAMPLE.exists(), reason="the real images are not here")
@pytest.mark.parametrize("crops", [1, pytest.param(10, marks=pytest.mark.soak)])
@pytest.mark.whole
def test_regions_of_real_images_are_those_of_the_whole(by_regions, crops):
    with tarfile.open(SAMPLE) as tar:
        for number, member in enumerate(tar):
            file = tar.extractfile(member) if member.isfile() else None
            if file is not None:
                assert_same(by_regions, file.read(), number, crops)


@given(st.integers(1, 90), st.integers(1, 90), st.sampled_from(sorted(jpegs())), st.integers(0, 2**32))
def test_regions_of_jpegs_of_any_size_are_those_of_the_whole(by_regions, height, width, kind, seed):
    assert_same(by_regions, jpegs()[kind](noise(height, width, seed)), seed, 5)


def decoders() -> list[Decoder]:
    return [decoder(), WholeDecoder()]


@pytest.mark.usefixtures("each_decoder")
def test_what_was_cut_short_is_no_image_and_what_has_junk_behind_it_is_one():
    data = jpeg(noise(64, 64))
    for each in decoders():
        whole = Region(0, 0, 64, 64)
        with pytest.raises(ValueError, match="Premature end"):
            each.decode(data[: len(data) // 2], whole)
        pixels = each.decode(data, whole).copy()
        assert np.array_equal(each.decode(data + b"junk" * 10, whole), pixels)
        for nothing in (b"", b"\xff\xd8", b"\xff\xd8 no image at all", b"\xff\xd8\xff\xd9", data[:200]):
            each.decode(data, whole)  # whose header and pixels are not to be taken for those of the next
            with pytest.raises(ValueError, match=r"."):
                each.size(nothing)
            with pytest.raises(ValueError, match=r"."):
                each.decode(nothing, Region(0, 0, 1, 1))


def test_png_and_webp_and_four_colours_come_as_rgb():
    pixels = noise(20, 30)
    assert np.array_equal(whole_image(encoded(pixels, ".png")), pixels)
    grey = pixels[:, :, :1]
    assert np.array_equal(whole_image(encoded(grey, ".png")), np.repeat(grey, 3, axis=2))
    assert np.abs(whole_image(encoded(pixels // 4 + 90, ".webp", 64, 101)) - (pixels // 4 + 90.0)).mean() < 3
    with pytest.raises(ValueError, match="no image of a known format"):
        whole_image(b"GIF89a or so")


def test_a_library_that_is_none_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv(OVERRIDE, str(tmp_path / "libturbojpeg.so"))
    with pytest.raises(BadSetting, match=r"PENSTOCK_TURBOJPEG=.*this is no libjpeg-turbo 3"):
        turbo_library()


@needs_turbo
def test_a_library_before_3_0_2_is_only_used_by_name(monkeypatch):
    monkeypatch.delenv(OVERRIDE, raising=False)
    monkeypatch.setattr("penstock.sources.images.turbo._candidates", lambda: [str(turbo_path())])
    assert turbo_library() is None
    assert "libjpeg-turbo" not in decoder().name
    monkeypatch.setenv(OVERRIDE, str(turbo_path()))
    assert "libjpeg-turbo" in decoder().name


def test_a_decoder_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv(DECODER, "nvjpg")
    with pytest.raises(BadSetting, match="PENSTOCK_DECODER=nvjpg: it is not installed, or is none of"):
        decoder()


def test_of_four_colours_each_decoder_leaves_it_to_the_whole_one(by_regions):
    image = pytest.importorskip("PIL.Image").fromarray(noise(40, 50)).convert("CMYK")
    file = io.BytesIO()
    image.save(file, "JPEG")
    for region in regions(40, 50, 0, 5):
        assert pixels_of(by_regions, file.getvalue(), region) == pixels_of(WholeDecoder(), file.getvalue(), region)


@needs_nvimagecodec
def test_a_decoder_that_cannot_be_loaded_is_an_error_in_words(monkeypatch):
    monkeypatch.setenv(DECODER, "nvimagecodec")
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", None)
    monkeypatch.delattr("nvidia.nvimgcodec", raising=False)
    with pytest.raises(SourceError, match=r"cannot be loaded .*: uninstall it, or set PENSTOCK_DECODER"):
        decoder().decode(jpeg(noise(8, 8)), Region(0, 0, 8, 8))


def damaged(data: bytes, choose: random.Random) -> bytes:
    spoilt = bytearray(data)
    for _ in range(choose.choice([1, 1, 3])):
        spoilt[choose.randrange(len(data) - 2)] = choose.randrange(256)
    return bytes(spoilt)


def pixels_of(each: Decoder, data: bytes, region: Region) -> bytes | None:
    """What a source makes of an image: a decoder that cannot decode a region leaves it to the whole one."""
    top, left, height, width = region
    for decode in (each.decode, lambda data, _: whole_jpeg(data)[top : top + height, left : left + width]):
        with suppress(ValueError):
            return decode(data, region).tobytes()
    return None


def test_of_a_damaged_image_each_decoder_makes_the_same(by_regions):
    choose = random.Random(0)
    for number in range(200):
        kind = choose.choice(sorted(jpegs()))
        data = damaged(jpegs()[kind](noise(64, 80, number)), choose)
        with suppress(ValueError):
            height, width = WholeDecoder().size(data)
            if height * width < 1 << 20:  # damage may tell of a large one
                (region,) = regions(height, width, number, 1)
                assert pixels_of(by_regions, data, region) == pixels_of(WholeDecoder(), data, region)


def test_of_an_image_that_is_not_decoded_no_pixels_come():
    """Without a word, simplejpeg leaves the memory as it was where libjpeg gives up."""
    choose, left = random.Random(0), 0
    for number in range(350):
        data = damaged(jpegs()[choose.choice(sorted(jpegs()))](noise(64, 80, number)), choose)
        with suppress(ValueError):
            shape = (*WholeDecoder().size(data), 3)
            if np.prod(shape) > 1 << 22:  # damage may tell of a large one
                continue
            given = [
                simplejpeg.decode_jpeg(data, "RGB", strict=False, buffer=np.full(shape, v, "u1")) for v in (1, 2)
            ]
            if not np.array_equal(*given):
                left += 1
                with pytest.raises(ValueError, match=r"Huffman|marker"):
                    whole_jpeg(data)
    assert left


NO_JITTER = (0.0, 0.0, 0.0, 0.0)


def augmentation(**changes: Any) -> Augmentation:
    common: dict[str, Any] = {"size": 32, "crop": "rrc", "scale": (0.08, 1.0), "ratio": (3 / 4, 4 / 3)}
    return Augmentation(**{**common, "flip": 0.0, "jitter": NO_JITTER, "shrink": "bilinear", **changes})


def finished(pixels: np.ndarray, draws: np.ndarray, **changes: Any) -> np.ndarray:
    to = np.empty((32, 32, 3), np.uint8)
    augmentation(**changes).finish(pixels, draws, to)
    return to


def torchvisions(height: int, width: int, choose: random.Random) -> Region:
    """As torchvision.transforms.RandomResizedCrop.get_params draws them."""
    for _ in range(10):
        area = height * width * choose.uniform(0.08, 1.0)
        ratio = math.exp(choose.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return Region(choose.randint(0, height - h), choose.randint(0, width - w), h, w)
    ratio = min(max(width / height, 3 / 4), 4 / 3)
    w, h = (width, round(width / ratio)) if width / height < 3 / 4 else (round(height * ratio), height)
    return Region((height - h) // 2, (width - w) // 2, h, w)


@pytest.mark.parametrize(("height", "width"), [(375, 500), (224, 224), (50, 900), (900, 100)])
def test_random_crops_are_spread_as_those_of_random_resized_crop(height, width):
    choose = random.Random(0)
    expected = np.array([torchvisions(height, width, choose) for _ in range(6000)], float)
    draws = draws_of(1, 2, 3, 6000, 1)[:, 0]
    crops = np.array([augmentation().region(height, width, each) for each in draws], float)
    for found, wanted in zip(crops.T, expected.T, strict=True):
        tolerance = 0.1 * max(1.0, wanted.std())
        assert found.mean() == pytest.approx(wanted.mean(), abs=tolerance)
        assert found.std() == pytest.approx(wanted.std(), abs=tolerance)


@given(st.integers(1, 700), st.integers(1, 700), st.integers(0, 2**32))
def test_a_crop_lies_in_its_image(height, width, seed):
    for crop in ("rrc", "center"):
        top, left, h, w = augmentation(crop=crop).region(height, width, draws_of(seed, 0, 0, 1, 1)[0, 0])
        assert 0 <= top < top + h <= height
        assert 0 <= left < left + w <= width


def test_a_center_crop_is_that_of_resizing_to_256_and_cropping_224():
    assert augmentation(crop="center").region(512, 1024, np.zeros(0)) == Region(32, 288, 448, 448)
    assert augmentation(crop="center").region(80, 40, np.zeros(0)) == Region(22, 2, 35, 35)


def test_draws_depend_on_seed_cycle_and_place():
    first = draws_of(7, 3, 128, 10, 2)
    assert first.min() >= 0
    assert first.max() < 1
    assert np.array_equal(draws_of(7, 3, 128, 10, 2), first)
    assert len(np.unique(first)) == first.size
    for other in ((8, 3, 128), (7, 4, 128), (7, 3, 256), (7 + 2**32, 3, 128)):
        assert not np.isin(draws_of(*other, 10, 2), first).any()


def test_flips_mirror_as_often_as_asked():
    pixels = noise(32, 32)
    draws = draws_of(0, 0, 0, 400, 1)[:, 0]
    mirrored = [bool((finished(pixels, each, flip=0.3) == pixels[:, ::-1]).all()) for each in draws]
    assert sum(mirrored) == pytest.approx(120, abs=35)
    as_it_was = [bool((finished(pixels, each, flip=0.3) == pixels).all()) for each in draws]
    assert [not is_so for is_so in mirrored] == as_it_was


def test_colours_change_within_their_strength_and_only_those_asked_for():
    pixels = np.empty((32, 32, 3), np.uint8)
    pixels[:16], pixels[16:] = (180, 90, 60), (60, 120, 30)
    draws = draws_of(0, 0, 0, 200, 1)[:, 0]
    brighter = np.array([finished(pixels, each, jitter=(0.2, 0.0, 0.0, 0.0)) for each in draws]).astype(float)
    factors = brighter[:, 0, 0, 0] / 180
    assert 0.79 < factors.min() < 0.85
    assert 1.15 < factors.max() < 1.21
    assert np.abs(brighter - factors[:, None, None, None] * pixels).max() < 1.6
    grey = np.array([finished(pixels, each, jitter=(0.0, 0.0, 1.0, 0.0)) for each in draws]).astype(float)
    spread = grey.max(axis=3) - grey.min(axis=3)
    assert spread[:, 0, 0].min() < 10
    assert spread[:, 0, 0].max() > 170
    flat = np.array([finished(pixels, each, jitter=(0.0, 0.9, 0.0, 0.0)) for each in draws]).astype(float)
    assert flat.std(axis=(1, 2)).min() < 8
    turned = np.array([finished(pixels, each, jitter=(0.0, 0.0, 0.0, 0.5)) for each in draws])
    assert {int(each.argmax()) for each in turned[:, 0, 0]} == {0, 1, 2}
    assert (np.abs(turned[:, 0, 0].max(axis=1).astype(int) - 180) <= 2).all()


def test_the_area_is_averaged_where_a_crop_shrinks():
    pixels = np.zeros((320, 320, 3), np.uint8)
    pixels[::4] = 200
    draws = draws_of(0, 0, 0, 1, 1)[0, 0]
    assert finished(pixels, draws, shrink="area").mean() == pytest.approx(50, abs=2)
    assert finished(pixels, draws).mean() == pytest.approx(50, abs=2)
    small = noise(20, 20)
    assert (finished(small, draws, shrink="area") == finished(small, draws)).all()


def test_the_union_of_regions_holds_them():
    assert union([Region(5, 10, 10, 10), Region(0, 15, 7, 20)]) == Region(0, 10, 15, 25)


@pytest.mark.parametrize(
    ("height", "width"), [(64, 94), (100, 130), (150, 180), (400, 430), (40, 200), (200, 40), (30, 120), (70, 700)]
)
def test_what_shrinks_to_less_than_half_is_near_to_pillows_bilinear(height, width):
    """As it was found: 9.5 levels apart at 64 pixels, where single pixels were taken; and along one side alone."""
    pixels = cv2.GaussianBlur(noise(height, width), (3, 3), 0)
    wanted = np.asarray(Image.fromarray(pixels).resize((32, 32), Image.Resampling.BILINEAR)).astype(float)
    found = finished(pixels, np.zeros(50))
    picked = cv2.resize(pixels, (32, 32)).astype(float)
    assert np.abs(found - wanted).mean() < 0.65 * np.abs(picked - wanted).mean()
    assert np.abs(found.mean() - wanted.mean()) < 1


def test_a_whole_image_is_resized_and_not_cut():
    for shape in ((32, 32), (20, 50), (90, 40)):
        region = augmentation(crop="whole").region(*shape, np.zeros(50))
        assert region == Region(0, 0, *shape)
    same = noise(32, 32)
    assert (finished(same, np.zeros(50), crop="whole") == same).all()


@pytest.mark.parametrize("padding", [0, 4, 40])
def test_a_padded_crop_is_torchvisions_random_crop_of_the_padded_image(padding):
    pixels = noise(32, 32)
    padded = np.pad(pixels, ((padding, padding), (padding, padding), (0, 0)))
    places = []
    for each in draws_of(0, 0, 0, 400, 1)[:, 0]:
        found = finished(pixels, each, crop="padded", padding=padding)
        top, left = (int(draw * (2 * padding + 1)) for draw in each[:2])
        assert (found == padded[top : top + 32, left : left + 32]).all()
        places.append((top, left))
    for along in zip(*places, strict=True):
        assert np.mean(along) == pytest.approx(padding, abs=0.2 * padding)
        if padding == 4:
            assert set(along) == set(range(9))
