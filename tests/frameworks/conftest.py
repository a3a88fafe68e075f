"""What the scripts train on, drawn once, and what each of them does without Penstock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.forked import ForkServer
from tests.frameworks.groups import SCRIPTS, Group, Report, reports_in
from tests.frameworks.processes import FOLDER, MODULES, PYTHON, Warm, environment_in


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """Starts scripts where the libraries are imported already."""
    assert PYTHON.exists(), "make test-frameworks makes the environment"
    folder = tmp_path_factory.mktemp("ended")
    server = ForkServer(folder, MODULES, FOLDER, (str(PYTHON),), environment_in(folder))
    yield Warm(server)
    server.close()


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Path:
    folder = tmp_path_factory.mktemp("data")
    warm.printed(folder, FOLDER / "make_data.py", folder)
    return folder


@pytest.fixture
def group(data: Path, tmp_path: Path) -> Callable[..., Group]:
    """Make a group of runs that start together on a feed; each of them is the words that follow a script's own."""

    def make(script: str, *runs: str, name: str = "group", hold_at: tuple[int, ...] = ()) -> Group:
        folder = tmp_path / name
        folder.mkdir()
        return Group(folder, data, SCRIPTS[script], [run.split() for run in runs], hold_at)

    return make


@pytest.fixture
def alone(data: Path, warm: Warm, tmp_path: Path) -> Callable[[str], list[Report]]:
    """Tell what a script's usual runs do, both at once, without Penstock."""

    def reports(name: str) -> list[Report]:
        script, folder = SCRIPTS[name], tmp_path / "alone"
        folder.mkdir()
        runs = [
            warm.start(folder, *script.of_itself(folder / f"{i}.report"), *run, ranks=script.ranks, data=data)
            for i, run in enumerate(script.usual)
        ]
        for run in runs:
            run.ended()
        return reports_in(folder, len(runs), script.ranks)

    return reports
