"""What the import linter cannot see: circles of rooms, and modules that are named by strings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from benchmarks.house import circles, code_lines, modules_of, upward_strings

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "penstock"


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


def test_lines_of_code_are_neither_blank_nor_comments_nor_docstrings():
    assert code_lines('"""What\nit is."""\n\n# why\nx = (\n    1\n)  # one\n\n\ndef f():\n    "No."\n') == 4
