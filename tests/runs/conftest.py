"""`penstock run` as processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.forked import ForkServer
from tests.runs.running import InTerminal, Launch, nothing_is_left


@pytest.fixture
def launch(servers: dict[str, ForkServer], tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    """Start a `penstock run`; nothing of it outlives the test."""
    launched: list[Launch] = []

    def start(*words: str, **environment: str) -> Launch:
        launched.append(Launch(servers["command"], tmp_path, *words, **environment))
        return launched[-1]

    yield start
    for each in launched:
        each.kill()
    nothing_is_left(tmp_path)


@pytest.fixture
def in_terminal(servers: dict[str, ForkServer], tmp_path: Path) -> Iterator[Callable[..., InTerminal]]:
    """Start a `penstock run` in a terminal; nothing of it outlives the test."""
    launched: list[InTerminal] = []

    def start(*words: str) -> InTerminal:
        launched.append(InTerminal(servers["command"], tmp_path, *words))
        return launched[-1]

    yield start
    for each in launched:
        each.close()
    nothing_is_left(tmp_path)
