"""Runs what other libraries write and read, in environments of their own."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENTS = Path(os.environ.get("PENSTOCK_FORMATS") or sys.prefix)
HERE = Path(__file__).parent


class Original:
    """A library that writes and reads a format, in the environment of that name unless another is given."""

    def __init__(self, name: str, folder: Path, environment: str = "") -> None:
        self.name, self.folder, self.environment = name, folder, environment or name

    def write(self, kinds: dict[str, str], samples: list[dict[str, Any]], *options: str) -> Path:
        """Have it write samples; give the folder."""
        given, folder = self.folder / "given", self.folder / "written"
        given.write_bytes(pickle.dumps((kinds, samples), protocol=4))
        self._run("write", folder, given, *options)
        return folder

    def read(self, folder: Path) -> list[dict[str, Any]]:
        """What it reads there."""
        self._run("read", folder, self.folder / "read")
        return pickle.loads((self.folder / "read").read_bytes())

    def _run(self, *words: str | Path) -> None:
        python = ENVIRONMENTS / f"formats-{self.environment}" / "bin" / "python"
        script = HERE / f"original_{self.name}.py"
        ran = subprocess.run(
            [python, script, *words], cwd=self.folder, capture_output=True, text=True, timeout=200, check=False
        )
        assert ran.returncode == 0, ran.stderr


@pytest.fixture
def mds(tmp_path: Path) -> Original:
    return Original("mds", tmp_path)


@pytest.fixture
def litdata(tmp_path: Path) -> Original:
    return Original("litdata", tmp_path)


@pytest.fixture
def tables(tmp_path: Path) -> Original:
    return Original("tables", tmp_path, "litdata")
