"""One Slurm for all tests here, which are skipped where there can be none."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.forked import ForkServer
from tests.runs.running import Launch, launches
from tests.slurm.slurm import Slurm, why_not


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    if why := why_not():
        pytest.skip(f"no Slurm here: {why}")
    with tempfile.TemporaryDirectory(prefix="slurm") as folder:
        slurm = Slurm(Path(folder))
        try:
            yield slurm
        finally:
            slurm.close()


@pytest.fixture
def launch(
    slurm: Slurm, servers: dict[str, ForkServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Launch]]:
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    with launches(Launch, servers, tmp_path) as start:
        yield start
