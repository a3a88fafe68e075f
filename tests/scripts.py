"""Python text that a test runs in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def output_of(text: str, *words: str | Path) -> str:
    """Run it to its end, which is without an error; return what it printed."""
    ran = subprocess.run(
        [sys.executable, "-c", text, *words], capture_output=True, text=True, timeout=100, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
