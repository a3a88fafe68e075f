"""Decoders, by name."""

from __future__ import annotations

import pytest
from tests.sources.images.pictures import BY_REGIONS, turbo_path

from penstock.sources.images.decoders import DECODER
from penstock.sources.images.turbo import OVERRIDE


@pytest.fixture(params=[*BY_REGIONS, "simplejpeg"])
def each_decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have sources decode by each decoder."""
    monkeypatch.setenv(DECODER, request.param)
    if request.param == "libjpeg-turbo":
        monkeypatch.setenv(OVERRIDE, str(turbo_path()))
    return request.param
