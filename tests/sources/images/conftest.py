"""Decoders, by name."""

from __future__ import annotations

import pytest
from tests.sources.images.pictures import turbo_path

from penstock.sources.images.turbo import OVERRIDE


@pytest.fixture(params=["regions", "whole"])
def each_decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have sources decode by regions, or whole images."""
    if request.param == "regions":
        if (path := turbo_path()) is None:
            pytest.skip("PyPI has no turbojpeg for this Python")
        monkeypatch.setenv(OVERRIDE, str(path))
    else:
        monkeypatch.delenv(OVERRIDE, raising=False)
        monkeypatch.setattr("penstock.sources.images.choose.turbo_library", lambda: None)
    return request.param
