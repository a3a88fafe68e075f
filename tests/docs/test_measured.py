"""The numbers of the README and of docs/benchmarks.md are those of the committed results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def printed(*words: str) -> str:
    """What the script says that prints the tables."""
    command = [sys.executable, ROOT / "benchmarks" / "readme.py", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_measured_rows_of_the_readme_are_those_of_the_results():
    begin, end = "<!-- measured: begin -->", "<!-- measured: end -->"
    assert f"{begin}\n{printed()}\n{end}" in (ROOT / "README.md").read_text()


def test_the_page_of_benchmarks_is_that_of_the_results():
    assert printed("page") == (ROOT / "docs" / "benchmarks.md").read_text().strip()


def test_every_result_names_its_machine_and_date():
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        result = json.loads(path.read_text())
        assert result.get("date") or result["machine"]["date"], path
        assert result["machine"]["cpu"], path
        assert str(ROOT) not in path.read_text()
