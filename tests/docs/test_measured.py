"""The README's numbers are those of the committed results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_measured_tables_of_the_readme_are_those_of_the_results():
    printed = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "readme.py"], capture_output=True, text=True, check=True
    ).stdout
    assert printed.strip() in (ROOT / "README.md").read_text()


def test_every_result_names_its_machine_and_date():
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        result = json.loads(path.read_text())
        assert result.get("date") or result["machine"]["date"], path
        assert result["machine"]["cpu"], path
        assert str(ROOT) not in path.read_text()
