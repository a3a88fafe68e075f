"""Worker processes that are forked from one that has imported what all of them do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.forked import ForkServer


@pytest.fixture(scope="session")
def worker_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    server = ForkServer(
        tmp_path_factory.mktemp("workers"), ["tests.sources.warm_workers"], Path(__file__).parents[2]
    )
    yield server
    server.close()


@pytest.fixture
def new_pythons() -> None:
    """Tells that a test's workers are not to be forked, but start as they do for users."""


@pytest.fixture(autouse=True)
def forks_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the workers that this process starts forked: children of its own, that need not import anything."""
    if "new_pythons" not in request.fixturenames:
        server: ForkServer = request.getfixturevalue("worker_server")
        monkeypatch.setattr(os, "posix_spawn", server.spawn)
