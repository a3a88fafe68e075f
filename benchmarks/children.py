"""Child processes of the benchmarks: they find what this process finds, and nothing in its working directory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from penstock.measure.pool import ONE_THREAD

ROOT = Path(__file__).parents[1]

ENVIRONMENT = {
    **ONE_THREAD,
    "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
}
"""Added to a child's: ``benchmarks`` is not installed."""


def command(module: str, *arguments: str) -> list[str]:
    """A module's process; -P, so that the working directory is not searched for modules."""
    return [sys.executable, "-P", "-m", module, *arguments]
