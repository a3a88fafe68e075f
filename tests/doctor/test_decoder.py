"""Which decoder of JPEGs is advised: none where one by regions is there, NVIDIA's only beside its driver."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sources.images.pictures import needs_nvimagecodec

from penstock.doctor import checks
from penstock.sources.images import gpu
from penstock.sources.images.decoders import DECODER


@pytest.mark.parametrize("has_gpu", [False, True])
def test_nvidias_decoder_is_advised_only_where_its_driver_is(has_gpu, tmp_path: Path, monkeypatch):
    monkeypatch.setenv(DECODER, "simplejpeg")
    driver = tmp_path / "version"
    monkeypatch.setattr(checks, "_DRIVER", driver)
    if has_gpu:
        driver.touch()
    found = checks._decoder()
    assert found.verdict == "limited"
    assert ("nvimagecodec" in found.remedy) == has_gpu and "libjpeg-turbo" in found.remedy


def test_what_decodes_on_a_gpu_is_named_or_what_it_lacks(monkeypatch):
    monkeypatch.setattr(gpu, "lacks", lambda: "torchvision is not installed (pip install torchvision)")
    found = checks._gpu_decoder()
    assert found.verdict == "limited" and "torchvision is not installed" in found.found
    monkeypatch.setattr(gpu, "lacks", str)
    monkeypatch.setattr(checks, "version", lambda _: "0.26.0")
    assert checks._gpu_decoder().verdict == "works" and "torchvision 0.26.0" in checks._gpu_decoder().found


@needs_nvimagecodec
def test_one_that_decodes_by_regions_is_enough(monkeypatch):
    monkeypatch.setenv(DECODER, "nvimagecodec")
    found = checks._decoder()
    assert (found.verdict, found.remedy) == ("works", "")
