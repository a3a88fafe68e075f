"""Python that a test runs in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_python(*words: str | Path, timeout: float = 100, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python with these words to its end, which may be an error; options are those of ``subprocess.run``."""
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)


def output_of(text: str, *words: str | Path, cwd: Path | None = None, **environment: str) -> str:
    """Run it to its end, which is without an error; return what it printed."""
    ran = run_python("-c", text, *words, cwd=cwd, env={**os.environ, **environment})
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
