"""Counts what the house is made of, now and in another revision: lines, files, rooms, names that stand twice.

``python -m benchmarks.house d2b61bcf --json benchmarks/results/house.json`` prints both beside each other.
"""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from penstock.basics.results import results_table
from penstock.runs.machine import describe

ROOT = Path(__file__).parents[1]
_OFTEN = 5
"""A file name that stands so often tells nobody what is in the file."""


def lines_in(*folders: Path) -> int:
    """Count the lines of Python below some folders."""
    return sum(len(path.read_text().splitlines()) for folder in folders for path in folder.rglob("*.py"))


def count(root: Path) -> dict[str, Any]:
    """Return the figures of a checkout."""
    source = root / "src" / "penstock"
    files = [*source.rglob("*.py")]
    rooms = [path for path in sorted(source.iterdir()) if (path / "__init__.py").is_file()]
    classes = Counter(
        node.name
        for path in files
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    names = Counter(path.name for path in files)
    beside = [root / name for name in ("tests", "benchmarks", "examples")]
    return {
        "src": lines_in(source),
        "tests": lines_in(beside[0]),
        "benchmarks and examples": lines_in(*beside[1:]),
        "all": lines_in(source, *beside),
        "files of src": len(files),
        "public class names that stand twice": sum(times > 1 for times in classes.values()),
        "file names that stand five times": sum(
            times >= _OFTEN for name, times in names.items() if name != "__init__.py"
        ),
        "words of the README": len((root / "README.md").read_text().split()),
        **{f"lines of {room.name}": lines_in(room) for room in rooms},
        **{f"files of {room.name}": sum(1 for _ in room.rglob("*.py")) for room in rooms},
    }


def main(
    before: Annotated[str, typer.Argument(help="Revision to hold the working tree against.")],
    out: Annotated[Path | None, typer.Option("--json", help="File for the figures.")] = None,
) -> None:
    """Count this repository as it was and as it is."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "archive", f"--output={folder}/all.tar", before], cwd=ROOT, check=True)
        shutil.unpack_archive(f"{folder}/all.tar", folder, filter="data")
        then, now = count(Path(folder)), count(ROOT)
    table = results_table("figure", before[:8], "now")
    for name, value in now.items():
        table.add_row(name, f"{then.get(name, 0):,}", f"{value:,}")
    Console().print(table)
    if out is not None:
        found = {"machine": msgspec.to_builtins(describe()), "revision": before, "before": then, "now": now}
        out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
