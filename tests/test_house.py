"""What the house may hold: lines and files of each room, verbs of the command, words of the README.

Who needs more raises the table in the same commit, and that commit's message names what was deleted for it.
Who deletes lowers it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from penstock.cli.command import app

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "penstock"
SPARE_LINES = 120
"""A room may hold so many fewer before its line in the table must be lowered."""
ROOMS = {  # lines, files
    "autosharing": (1787, 10),
    "basics": (826, 10),
    "bench": (2450, 15),
    "cli": (3372, 22),
    "contracts": (1050, 5),
    "doctor": (560, 3),
    "feed": (10733, 55),
    "fingerprint": (1800, 11),
    "fit": (990, 6),
    "gpus": (370, 4),
    "inject": (83, 2),
    "io": (4890, 27),
    "linux": (980, 8),
    "memory": (1371, 9),
    "runs": (10775, 69),
    "schedule": (2941, 15),
    "select": (3860, 20),
    "sources": (15420, 95),
    "subsets": (850, 5),
    "testing": (1198, 9),
    "tree": (948, 5),
    "web": (2087, 13),
    "at the top": (674, 5),
}
VERBS = 38
README_WORDS = 744


def held(room: str) -> tuple[int, int]:
    """Return the lines and files of a room; those at the top are one."""
    files = [*SOURCE.glob("*.py")] if room == "at the top" else [*(SOURCE / room).rglob("*.py")]
    return sum(len(path.read_text().splitlines()) for path in files), len(files)


def verbs(command: Any) -> int:
    """Count the verbs below a command that do something themselves."""
    if not hasattr(command, "list_commands"):
        return 1
    return sum(verbs(command.get_command(None, name)) for name in command.list_commands(None))


def test_every_room_has_a_line():
    assert set(ROOMS) == {path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file()} | {
        "at the top"
    }


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_holds_what_its_line_says(room: str):
    lines, files = held(room)
    most_lines, most_files = ROOMS[room]
    assert lines <= most_lines, f"{room} has {lines - most_lines} lines more than tests/test_house.py grants"
    assert files <= most_files, f"{room} has {files - most_files} files more than tests/test_house.py grants"
    assert most_lines <= lines + SPARE_LINES, f"{room} has shrunk to {lines} lines: lower its line"
    assert most_files == files, f"{room} has shrunk to {files} files: lower its line"


def test_the_command_has_so_many_verbs():
    assert verbs(get_command(app)) == VERBS


def test_the_readme_has_so_many_words():
    assert len((ROOT / "README.md").read_text().split()) <= README_WORDS
