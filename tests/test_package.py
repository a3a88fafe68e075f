"""What ``import penstock`` costs and promises."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import penstock

ROOT = Path(__file__).parents[1]


def test_importing_loads_nothing_heavy():
    loaded = subprocess.run(
        [sys.executable, "-c", "import penstock, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert not {"torch", "numpy", "mlflow", "starlette", "typer", "rich"} & set(loaded)


def test_importing_leaves_logging_alone():
    script = (
        "import logging; before = vars(logging.root).copy(); import penstock; penstock.share; penstock.attach; "
    )
    script += "assert vars(logging.root) == before and not logging.root.handlers"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_every_public_name_is_there():
    for name in dir(penstock):
        assert getattr(penstock, name) is not None
    with pytest.raises(AttributeError):
        penstock.no_such_name  # noqa: B018


def test_the_version_is_the_package_s():
    assert penstock.__version__ == version("penstock")


def test_no_benchmark_of_our_own_claims_is_installed():
    (packages,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ].values()
    assert packages == {"packages": ["src/penstock"]}
    measured_by_users = {name for _, name, _ in pkgutil.iter_modules([str(ROOT / "src/penstock/bench")])}
    assert measured_by_users == {"io", "saving", "share"}
