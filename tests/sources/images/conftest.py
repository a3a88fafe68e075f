"""Decoders by name, and sources that are closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

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


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Make sources, by the module's own ``made``, that are closed when the test ends."""
    with ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(
            closing(request.module.made(*arguments, **options))
        )
