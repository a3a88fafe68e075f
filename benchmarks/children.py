"""Child processes of the benchmarks: they can import what this process can, and nothing from its directory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.measure.pool import ONE_THREAD

ROOT = Path(__file__).parents[1]

ENVIRONMENT = {
    **ONE_THREAD,
    "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
}
"""Variables added for a child, as ``benchmarks`` is not installed."""


def command(module: str, *arguments: str) -> list[str]:
    """Return the command of a module's process; -P keeps the working directory off its import path."""
    return [sys.executable, "-P", "-m", module, *arguments]
