"""What the import linter cannot see: circles of rooms, and modules that are named by strings."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "penstock"


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


@pytest.mark.whole
def test_no_rooms_import_each_other_in_a_circle():
    assert not circles(modules_of(SOURCE))


def test_no_string_names_a_module_of_a_higher_layer():
    assert not upward_strings(modules_of(SOURCE), ROOT)


def test_a_circle_and_a_string_are_found():
    by_string = "from importlib import import_module\nimport_module('penstock.runs.sampler')"
    modules = {
        "penstock.feed.wire": by_string,
        "penstock.runs.sampler": "from penstock.autosharing import guard",
        "penstock.autosharing.guard": "def guard():\n    from penstock.feed import wire",
        "penstock.errors": "",
    }
    assert circles(modules) == [["autosharing", "feed", "runs"]]
    assert upward_strings(modules, ROOT) == 1


def test_every_room_has_a_layer():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = {room for rooms in settings["contracts"][0]["layers"] for room in re.split(r" [:|] ", rooms)}
    rooms = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert rooms - {"__init__"} == layers
