"""Regions of images are the pixels of whole ones, bit for bit; what cannot be decoded is said so."""

from __future__ import annotations

import random
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.images.pictures import SIZES, encoded, jpeg, jpegs, needs_turbo, noise, turbo_path

import penstock
from penstock.contracts import Decoder, Region
from penstock.sources.images.choose import decoder
from penstock.sources.images.turbo import OVERRIDE, TurboDecoder, turbo_library
from penstock.sources.images.whole import WholeDecoder, whole_image, whole_jpeg

SAMPLE = Path(__file__).parents[4] / "shared" / "data" / "imagenet-sample.tar"


@pytest.fixture(scope="module")
def turbo() -> Iterator[TurboDecoder]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OVERRIDE, str(turbo_path()))
        library = turbo_library()
        assert library is not None
        yield TurboDecoder(library)


def regions(height: int, width: int, seed: int, count: int) -> Iterator[Region]:
    choose = random.Random(seed)
    for _ in range(count):
        h, w = choose.randint(1, height), choose.randint(1, width)
        yield Region(choose.randint(0, height - h), choose.randint(0, width - w), h, w)


def assert_same(turbo: Decoder, data: bytes, seed: int, count: int) -> None:
    whole = whole_jpeg(data)
    assert turbo.size(data) == WholeDecoder().size(data) == whole.shape[:2]
    for region in regions(*whole.shape[:2], seed, count):
        top, left, height, width = region
        pixels = turbo.decode(data, region)
        assert np.array_equal(pixels, whole[top : top + height, left : left + width]), region


@needs_turbo
@pytest.mark.parametrize("kind", jpegs())
def test_regions_of_a_jpeg_of_any_kind_are_those_of_the_whole(turbo, kind):
    for seed, size in enumerate(SIZES):
        assert_same(turbo, jpegs()[kind](noise(*size, seed)), seed, 30)


@needs_turbo
@pytest.mark.skipif(not SAMPLE.exists(), reason="the real images are not here")
@pytest.mark.parametrize("crops", [1, pytest.param(10, marks=pytest.mark.soak)])
@pytest.mark.whole
def test_regions_of_real_images_are_those_of_the_whole(turbo, crops):
    with tarfile.open(SAMPLE) as tar:
        for number, member in enumerate(tar):
            file = tar.extractfile(member) if member.isfile() else None
            if file is not None:
                assert_same(turbo, file.read(), number, crops)


@needs_turbo
@given(st.integers(1, 90), st.integers(1, 90), st.sampled_from(sorted(jpegs())), st.integers(0, 2**32))
def test_regions_of_jpegs_of_any_size_are_those_of_the_whole(turbo, height, width, kind, seed):
    assert_same(turbo, jpegs()[kind](noise(height, width, seed)), seed, 5)


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
    assert isinstance(decoder(), WholeDecoder)
    monkeypatch.setenv(OVERRIDE, str(turbo_path()))
    assert "regions" in decoder().name
