"""Runs a benchmark's command and reads the report that it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.scripts import run_python

from benchmarks import children


def report_of(name: str, path: Path, *options: str | Path) -> dict[str, Any]:
    """Run ``python -m benchmarks NAME`` to its end; return its report, which must not name its folder."""
    done = run_python("-m", "benchmarks", name, *options, "--json", path, cwd=children.ROOT, timeout=110)
    assert done.returncode == 0, done.stderr
    report = path.read_text()
    assert str(path.parent) not in report
    return json.loads(report)
