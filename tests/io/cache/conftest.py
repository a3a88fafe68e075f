"""What every test of the cache needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.io.cache.slabs import close_all


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()
