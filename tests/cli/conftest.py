"""The command line as processes, and a file with loaders for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import command as process  # noqa: F401 - a fixture
from tests.forked import ForkServer, command_line

from penstock.cli import main
from penstock.runs.store import Store

LOADER = """
import time
from pathlib import Path
import numpy as np
import penstock
FOLDER = Path(__file__).parent
def make_loader():
    return penstock.ArraySource({"id": np.arange(200)}, batch_size=20)
def needs(folder): ...
def find(images):
    return images["images"]
def raises():
    return find({})
def chains():
    try:
        find({})
    except KeyError as error:
        raise OSError("no [images] here") from error
def slow():
    def blocks():
        for i in range(200):
            while i == 50 and not FOLDER.joinpath("go").exists():
                FOLDER.joinpath("half").touch()
                time.sleep(0.01)
            yield {"id": np.arange(20) + 20 * i}
    class Again:
        __iter__ = staticmethod(blocks)
    return Again()
def broken():
    def blocks():
        raise ValueError("the disk is gone")
        yield
    class Again:
        __iter__ = staticmethod(blocks)
    return Again()
"""


def started(*words: str, **options: Any) -> subprocess.Popen[str]:
    """Start the command line, whose output can be read."""
    command = [sys.executable, "-u", "-m", "penstock", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("PENSTOCK_STORE", str(tmp_path / "store"))
    with Store.open() as opened:
        yield opened


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run the command line in this process, which spares each test a second of imports."""

    def run(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
            patch.setattr(sys, "argv", ["penstock", *words])
            patch.setattr(sys, "path", sys.path[:])
            patch.chdir(cwd or Path.cwd())
            main()
        return subprocess.CompletedProcess(words, ended.value.code or 0, *capsys.readouterr())

    monkeypatch.setenv("COLUMNS", "200")
    return run


def environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "COLUMNS"} | more


@pytest.fixture
def piped(
    servers: dict[str, ForkServer], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line as a process of its own, in an environment with more."""

    def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return command_line(servers["command"], tmp_path_factory.mktemp("piped"), words, environment(**more))

    return run


def without(tmp_path: Path, *modules: str) -> dict[str, str]:
    """An environment in which these are not installed."""
    tmp_path.joinpath("sitecustomize.py").write_text(
        "from importlib.machinery import PathFinder\n"
        "find = PathFinder.find_spec\n"
        f"hidden = {modules!r}\n"
        "PathFinder.find_spec = staticmethod(lambda name, path=None, target=None: "
        "None if name.partition('.')[0] in hidden else find(name, path, target))\n"
    )
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}


def told(ran: Any) -> str:
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def refused(ran: Any) -> str:
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "Traceback" not in ran.stderr
    return ran.stderr


@pytest.fixture
def loader_file(tmp_path: Path) -> Path:
    path = tmp_path / "my_loader.py"
    path.write_text(LOADER)
    return path
