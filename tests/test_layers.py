"""What the import linter cannot see: modules that are named by strings."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "penstock"


def layers() -> dict[str, int]:
    """Return how high each room stands, as the import linter has it."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    written = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    return {room: -at for at, rooms in enumerate(written) for room in re.split(r" [:|] ", rooms)}


def modules_named_in(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for name in re.findall(r"^penstock(?:\.\w+)+$", node.value):
                if is_module(name):
                    yield name


def is_module(name: str) -> bool:
    path = SOURCE.joinpath(*name.split(".")[1:])
    return path.is_dir() or path.with_suffix(".py").is_file()


def points_upwards(room: str, named: str) -> bool:
    heights = layers()
    return heights[named.split(".")[1]] > heights[room]


def test_no_string_names_a_module_of_a_higher_layer():
    found = [
        (str(path.relative_to(SOURCE)), name)
        for path in SOURCE.rglob("*.py")
        if path != SOURCE / "__init__.py"
        for name in modules_named_in(path.read_text())
        if points_upwards(path.relative_to(SOURCE).parts[0].removesuffix(".py"), name)
    ]
    assert not found


def test_a_string_that_names_a_higher_layer_is_found():
    text = "from importlib import import_module\n\nimport_module('penstock.autosharing.guard').guard"
    (name,) = modules_named_in(text)
    assert points_upwards("inject", name) and points_upwards("feed", name) and not points_upwards("runs", name)


def test_every_room_has_a_layer():
    rooms = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert rooms - {"__init__"} == set(layers())
