"""A server for all tests here, and stores to push from."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.mlflow.server import COMMAND, Server
from tests.scripts import run_python

from penstock.runs.store import Store

Pushed = subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that lives as long as the tests; each uses experiments of its own."""
    assert COMMAND.exists(), "make test-mlflow installs MLflow's server"
    server = Server(tmp_path_factory.mktemp("mlflow"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture
def mortal(server: Server, tmp_path: Path) -> Iterator[Server]:
    """A server of the test's own, not started yet."""
    mortal = Server(tmp_path, made=server.database)
    yield mortal
    mortal.kill()


@pytest.fixture
def push(store: Store) -> Callable[..., Pushed]:
    """Run ``penstock runs push``, impatient with a dead server."""

    def run(*words: str) -> Pushed:
        return run_python(*push_command(*words, "--store", str(store.folder))[1:], env=ENVIRONMENT, timeout=300)

    return run


def push_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "penstock", "runs", "push", *words]


ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")},
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "COLUMNS": "200",
}
