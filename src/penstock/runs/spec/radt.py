"""RADT's CSV files: rows as runs, and single cells replaced while all else stays as it was."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock.errors import BadSetting
from penstock.runs.record import GroupPlan, RunPlan, RunRecord
from penstock.runs.spec.checks import Gpus
from penstock.runs.spec.command import named, runs_of

_CELL = re.compile(r'[ \t]*"(?P<quoted>(?:[^"]|"")*)"[ \t]*(?=[,\r\n]|\Z)|(?![ \t]*")(?P<plain>[^,\r\n]*)')
_NEEDS_QUOTES = re.compile(r'[,"\r\n]|^\s|\s$')


class Cell(msgspec.Struct, frozen=True):
    """One cell: its text, without quotes and spaces around it, and where it stands."""

    text: str
    begin: int
    end: int


class Record(msgspec.Struct, frozen=True):
    """One record: its cells, and its first line, from 1."""

    cells: tuple[Cell, ...]
    line: int


def records_of(path: Path, text: str) -> list[Record]:
    """Split text into records; empty lines are none."""
    records: list[Record] = []
    cells: list[Cell] = []
    at, line, first_line = int(text.startswith("\ufeff")), 1, 1
    while at <= len(text):
        if (found := _CELL.match(text, at)) is None:
            raise BadSetting(
                f'{path}:{line}: a cell that begins with " ends with one more: " within it are written ""'
            )
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


_NEEDED = ("Experiment", "Workload", "Status", "Run", "Devices", "Collocation", "File", "Listeners", "Params")
_COLUMNS = (*_NEEDED, "Name")
_LISTENERS = {
    "smi": ("gpu",),
    "dcgmi": ("gpm",),
    "top": ("proc", "host"),
    "ps": ("proc",),
    "iostat": ("disk",),
    **{name: (name,) for name in ("proc", "host", "disk", "gpu", "gpm", "dcgm", "energy", "feed")},
}
"""What stands for each listener of radT's; its successors' own names are taken too."""
_PROFILERS = {"nsys": "nsys", "nsysraw": "nsys", "ncu": "ncu", "ncuraw": "ncu", "ncuattach": ""}
"""What stands for each profiler of radT's, which are among its listeners; nothing for one that is left out."""
_MIG_PROFILE = re.compile(r"\d+g\.\d+gb(?:\+[\w.]+)?")


class Row(msgspec.Struct, frozen=True):
    """One line: its cells by column."""

    where: str  # file and line, as errors begin
    number: int  # its place among the file's records
    cells: dict[str, Cell]  # what stands in it, by column

    def text(self, column: str) -> str:
        """Return the text in a column; nothing if there is no such column."""
        return self.cells[column].text if column in self.cells else ""

    def wrong(self, column: str, why: str) -> BadSetting:
        return BadSetting(f"{self.where}, column {column}: {why}")

    def words(self, column: str) -> list[str]:
        """Return what ``+`` joins in a cell; nothing for ``-``."""
        return [word.strip() for word in self.text(column).split("+") if word.strip() not in {"", "-"}]

    @property
    def has_ended(self) -> bool:
        """Whether it need not run again, by its Status as radT or ``status_of`` writes it."""
        return "FINISHED" in self.text("Status") or "FAILED" in self.text("Status")

    def untouched(self) -> dict[str, str]:
        """Return the text in the columns that only people write."""
        return {column: cell.text for column, cell in self.cells.items() if column not in {"Status", "Run"}}


def rows_of(path: Path, text: str) -> list[Row]:
    """Read all rows."""
    header, *records = records_of(path, text) or [Record((), 1)]
    columns = [cell.text for cell in header.cells]
    for column in columns:
        if column not in _COLUMNS:
            close = difflib.get_close_matches(column, _COLUMNS, 1)
            meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(_COLUMNS)}"
            raise BadSetting(f"{path}:{header.line}: there is no column {column!r}; {meant}")
        if columns.count(column) > 1:
            raise BadSetting(f"{path}:{header.line}: column {column} is there twice")
    if missing := [column for column in _NEEDED if column not in columns]:
        raise BadSetting(f"{path}:{header.line}: column {missing[0]} is missing")
    rows: list[Row] = []
    for number, record in enumerate(records):
        if len(record.cells) != len(columns):
            raise BadSetting(f"{path}:{record.line}: {len(record.cells)} cells under {len(columns)} columns")
        rows.append(Row(f"{path}:{record.line}", number, dict(zip(columns, record.cells, strict=True))))
    return rows


def groups_of(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows that start together, in the file's order, without groups whose runs have all ended."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.text("Experiment"), row.text("Workload")), []).append(row)
    return [group for group in groups.values() if not all(row.has_ended for row in group)]


def plan_rows(path: Path, rows: Sequence[Row], gpus: Gpus) -> GroupPlan:
    """Plan the runs of one Experiment and Workload. As in radT, each runs in its script's folder."""
    known = [_listeners(row) for row in rows]
    all_names = dict.fromkeys(name for names in known for name in names or ())
    return GroupPlan(
        name=f"{rows[0].text('Experiment')}-{rows[0].text('Workload')}",
        mode=_mode(rows),
        runs=named([_run(path, row, gpus) for row in rows]),
        listeners=None if None in known else tuple(all_names),
    )


def _run(path: Path, row: Row, gpus: Gpus) -> RunPlan:
    if not row.text("File"):
        raise row.wrong("File", "there is none")
    script = (path.parent / row.text("File")).absolute()
    if not script.is_file():
        raise row.wrong("File", f"there is no script {script}")
    params = row.text("Params")
    try:
        words = [] if params == "-" else shlex.split(params)
    except ValueError as error:
        raise row.wrong("Params", str(error)) from None
    (run,) = runs_of(
        f"{row.where}, column File",
        [script.name if script.suffix == ".py" else f"./{script.name}", *words],
        str(script.parent),
        name=row.text("Name"),
        devices=gpus.devices(f"{row.where}, column Devices", row.words("Devices")),
        profile=gpus.profilers(f"{row.where}, column Listeners", _profilers(row)),
        watch_dataloader=True,
        watch_metrics=True,
    )
    return run


def _mode(rows: Sequence[Row]) -> str:
    words = [row.text("Collocation") for row in rows]
    for row, word in zip(rows, words, strict=True):
        if word not in {"", "-"} and word.lower() != "mps" and not _MIG_PROFILE.fullmatch(word):
            raise row.wrong("Collocation", f"{word!r} is none of -, MPS and a MIG profile such as 3g.20gb")
        if _kind(word) != _kind(words[0]):
            raise row.wrong(
                "Collocation", f"{word!r} beside {words[0]!r}: runs that start together share one mode"
            )
    if _kind(words[0]) == "mig":
        return f"mig:{words[0] if len(set(words)) == 1 else ','.join(words)}"
    return _kind(words[0]) or ("plain" if len(rows) > 1 else "alone")


def _kind(word: str) -> str:
    return "" if word in {"", "-"} else "mps" if word.lower() == "mps" else "mig"


def _listeners(row: Row) -> tuple[str, ...] | None:
    """Return the names of a row's listeners here; None, which is all of them, if its cell is empty."""
    words = [word.lower() for word in row.words("Listeners")]
    for word in words:
        if word not in _LISTENERS and word not in _PROFILERS:
            there = ", ".join((*_LISTENERS, *_PROFILERS))
            raise row.wrong("Listeners", f"there is no listener {word!r}; there are {there}, joined by +")
    return tuple(name for word in words for name in _LISTENERS.get(word, ())) if words else None


def _profilers(row: Row) -> list[str]:
    names = (_PROFILERS.get(word.lower(), "") for word in row.words("Listeners"))
    return [name for name in dict.fromkeys(names) if name]


def status_of(record: RunRecord) -> str:
    """Return what stands in the column Status; radT, too, skips FINISHED and FAILED, and nothing else."""
    match record.status:
        case "failed":
            return f"FAILED (exit code {record.exit_code})"
        case "out_of_memory" | "timed_out":
            return f"FAILED ({record.status.replace('_', ' ')})"
        case _:
            return record.status.upper()
