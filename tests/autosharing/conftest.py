"""Scripts that share, and `penstock run` as processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.autosharing.running import Scripts
from tests.feed.trainer.test_framework import taken
from tests.forked import ForkServer
from tests.runs.conftest import launch

import penstock

__all__ = ["launch", "taken"]


@pytest.fixture
def scripts(servers: dict[str, ForkServer], tmp_path: Path) -> Iterator[Scripts]:
    runs = Scripts(servers["torch"], tmp_path)
    yield runs
    runs.close()
    for feed in penstock.feeds():
        penstock.stop(feed.name)
