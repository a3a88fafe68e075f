"""`penstock run` as processes, and `here` the command line in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import command as here  # noqa: F401 - a fixture
from tests.forked import ForkServer
from tests.runs.running import InTerminal, Launch, launches


@pytest.fixture
def launch(servers: dict[str, ForkServer], tmp_path: Path) -> Iterator[Callable[..., Any]]:
    with launches(Launch, servers, tmp_path) as start:
        yield start


@pytest.fixture
def in_terminal(servers: dict[str, ForkServer], tmp_path: Path) -> Iterator[Callable[..., Any]]:
    with launches(InTerminal, servers, tmp_path) as start:
        yield start
