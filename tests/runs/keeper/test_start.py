"""A keeper begins at once: it imports little before the run's command has begun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import penstock


def test_a_keeper_imports_nothing_large():
    program = (
        f"import sys; sys.path.insert(0, {str(Path(penstock.__file__).parents[1])!r})\n"
        "import penstock.runs.keeper.keeper\n"
        "print(*sys.modules)"
    )
    words = [sys.executable, "-I", "-S", "-c", program]
    imported = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    large = {"numpy", "torch", "rich", "typer", "psutil", "msgspec", "sqlite3", "subprocess", "asyncio"}
    assert not large & set(imported)
    assert len(imported) < 120
