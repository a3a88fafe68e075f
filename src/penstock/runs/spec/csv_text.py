"""CSV text in which single cells can be replaced, and everything else stays as it was, byte for byte."""

from __future__ import annotations

import re

import msgspec

_CELL = re.compile(r'[ \t]*"(?P<quoted>(?:[^"]|"")*)"[ \t]*(?=[,\r\n]|\Z)|(?P<plain>[^,\r\n]*)')
_QUOTED_BEGINS = re.compile(r'[ \t]*"')
_NEEDS_QUOTES = re.compile(r'[,"\r\n]|^\s|\s$')


class BadCell(Exception):
    """A cell has no end; the message says what is wrong, without the file."""

    def __init__(self, line: int) -> None:
        super().__init__('a cell that begins with " ends with one more: " within it are written ""')
        self.line = line


class Cell(msgspec.Struct, frozen=True):
    """One cell: its text, without quotes and spaces around it, and where it stands."""

    text: str
    begin: int
    end: int


class Record(msgspec.Struct, frozen=True):
    """One record: its cells, and its first line, from 1."""

    cells: tuple[Cell, ...]
    line: int


def records_of(text: str) -> list[Record]:
    """Split text into records; empty lines are none.

    Raises:
        BadCell: a quote has no end.
    """
    records: list[Record] = []
    cells: list[Cell] = []
    at, line, first_line = int(text.startswith("\ufeff")), 1, 1
    while at <= len(text):
        found = _CELL.match(text, at)
        assert found is not None  # it matches nothing, too
        if found["quoted"] is None and _QUOTED_BEGINS.match(text, at):
            raise BadCell(line)
        quoted = found["quoted"]
        cell = found["plain"].strip(" \t") if quoted is None else quoted.replace('""', '"')
        cells.append(Cell(cell, at, found.end()))
        line += len(re.findall(r"\r\n|\r|\n", found[0]))
        at = found.end()
        if text[at : at + 1] == ",":
            at += 1
            continue
        if len(cells) > 1 or quoted is not None or cell:
            records.append(Record(tuple(cells), first_line))
        cells = []
        at += 2 if text.startswith("\r\n", at) else 1
        line += 1
        first_line = line
    return records


def replaced(text: str, changes: dict[Cell, str]) -> str:
    """Return the text with other content in some cells."""
    for cell, content in sorted(changes.items(), key=lambda change: -change[0].begin):
        if _NEEDS_QUOTES.search(content):
            content = '"' + content.replace('"', '""') + '"'  # noqa: PLW2901
        text = text[: cell.begin] + content + text[cell.end :]
    return text
