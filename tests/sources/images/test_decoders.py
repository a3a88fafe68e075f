"""Regions of images are the pixels of whole ones, bit for bit; what cannot be decoded is said so."""

from __future__ import annotations

import io
import random
import sys
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
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

import penstock
from penstock.contracts import Decoder, Region
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
    with pytest.raises(penstock.BadSetting, match=r"PENSTOCK_TURBOJPEG=.*this is no libjpeg-turbo 3"):
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
    with pytest.raises(penstock.BadSetting, match="PENSTOCK_DECODER=nvjpg: it is not installed, or is none of"):
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
    with pytest.raises(penstock.SourceError, match=r"cannot be loaded .*: uninstall it, or set PENSTOCK_DECODER"):
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
    for number in range(400):
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
    for number in range(700):
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
