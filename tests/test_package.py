"""What ``import penstock`` costs and promises."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

import penstock


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
