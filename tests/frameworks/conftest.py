"""What the scripts train on, drawn once, and what each of them does without Penstock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.frameworks.groups import SCRIPTS, Group, Report, prepare


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepare(folder)
    return folder


@pytest.fixture
def group(data: Path, tmp_path: Path) -> Callable[..., Group]:
    """Make a group of runs that start together on a feed; each of them is the words that follow a script's own."""

    def make(script: str, *runs: str, name: str = "group", hold_at: int = 0) -> Group:
        folder = tmp_path / name
        folder.mkdir()
        return Group(folder, data, SCRIPTS[script], [run.split() for run in runs], share=True, hold_at=hold_at)

    return make


@pytest.fixture
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Report]]:
    """Tell what a script's usual runs do, both at once, without Penstock."""

    def reports(name: str) -> list[Report]:
        script = SCRIPTS[name]
        return Group(tmp_path_factory.mktemp("alone"), data, script, script.usual, share=False).ended()

    return reports
