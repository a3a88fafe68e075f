"""Counts what the house is made of: lines, files, rooms, circles, words and shapes.

``python -m benchmarks.house`` prints a table; ``--at REVISION`` counts another revision of this repository.
"""

from __future__ import annotations

import ast
import io
import json
import re
import shutil
import subprocess
import tempfile
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
_SPACE = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENCODING}


def code_lines(text: str) -> int:
    """Return the lines of a module that hold code: neither blank, nor comments, nor docstrings."""
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SPACE and token.type != tokenize.ENDMARKER:
            held.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            held.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(held)


def modules_of(source: Path) -> dict[str, str]:
    """Return the text of each module of a package, by its dotted name."""
    found: dict[str, str] = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return found


def imports_of(text: str, modules: dict[str, str], *, strings: bool) -> Iterator[str]:
    """List the modules of ours that a text imports, or names in strings."""
    for node in ast.walk(ast.parse(text)):
        if strings:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in modules:
                yield node.value
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                yield whole if whole in modules else node.module
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def circles(modules: dict[str, str]) -> list[list[str]]:
    """Return the groups of rooms (entries at the top) that import each other in a circle, by strings too."""
    rooms: dict[str, set[str]] = defaultdict(set)
    for module, text in modules.items():
        if module == "penstock":
            continue
        room = module.split(".")[1]
        for strings in (False, True):
            for other in imports_of(text, modules, strings=strings):
                if other.startswith("penstock.") and other.split(".")[1] != room:
                    rooms[room].add(other.split(".")[1])
    reach = {room: _reached(room, rooms) for room in rooms}
    found = {
        frozenset({room} | {other for other in seen if room in reach.get(other, ())})
        for room, seen in reach.items()
        if room in seen
    }
    return sorted(sorted(group) for group in found)


def _reached(room: str, rooms: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    todo = list(rooms[room])
    while todo:
        if (each := todo.pop()) not in seen:
            seen.add(each)
            todo += rooms.get(each, ())
    return seen


def upward_strings(modules: dict[str, str], root: Path) -> int:
    """Count the strings that name a module of a higher layer than their own."""
    written = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0][
        "layers"
    ]
    height = {room: -at for at, rooms in enumerate(written) for room in re.split(r" [:|] ", rooms)}
    return sum(
        height.get(other.split(".")[1], 0) > height.get(module.split(".")[1], 0)
        for module, text in modules.items()
        if module != "penstock"
        for other in imports_of(text, modules, strings=True)
        if other.count(".")
    )


def count(root: Path) -> dict[str, Any]:
    """Return the figures of a checkout."""
    source, tests = root / "src" / "penstock", root / "tests"
    modules = modules_of(source)
    classes = Counter(
        node.name
        for text in modules.values()
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    entries = [
        path.name
        for path in source.iterdir()
        if not path.name.startswith("__") and (path.suffix == ".py" or (path.is_dir() and any(path.rglob("*.py"))))
    ]
    return {
        "src_code_lines": sum(map(code_lines, modules.values())),
        "src_lines": sum(len(text.splitlines()) for text in modules.values()),
        "src_files": sum(1 for _ in source.rglob("*.py")),
        "entries_at_the_top": len(entries),
        "tests_lines": sum(len(path.read_text().splitlines()) for path in tests.rglob("*.py")),
        "circles": circles(modules),
        "upward_imports_by_string": upward_strings(modules, root),
        "class_names_twice": sorted(name for name, times in classes.items() if times > 1),
        "readme_lines": len((root / "README.md").read_text().splitlines()),
        "readme_words": len((root / "README.md").read_text().split()),
    }


def main(
    at: Annotated[str, typer.Option(help="Revision to count, in place of the working tree.")] = "",
    out: Annotated[Path | None, typer.Option("--json", help="File for the figures.")] = None,
) -> None:
    """Count this repository, and show the figures."""
    with tempfile.TemporaryDirectory() as folder:
        root = ROOT
        if at:
            archive = ["git", "archive", f"--output={folder}/all.tar", at]
            subprocess.run(archive, cwd=ROOT, check=True)
            shutil.unpack_archive(f"{folder}/all.tar", folder, filter="data")
            root = Path(folder)
        figures = count(root)
    table = Table("figure", "value")
    for name, value in figures.items():
        table.add_row(
            name.replace("_", " "), f"{len(value)}: {value}" if isinstance(value, list) else f"{value:,}"
        )
    Console().print(table)
    if out is not None:
        out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
