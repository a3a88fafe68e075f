"""RADT's CSV files: rows as runs. They are read only; what has ended is known from their Status and the store."""

from __future__ import annotations

import csv
import difflib
import io
import re
import shlex
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import msgspec

from penstock.errors import BadSetting
from penstock.runs.masking import masked_plan
from penstock.runs.record import ENDED, GroupPlan, RunPlan, RunRecord
from penstock.runs.spec.checks import Gpus
from penstock.runs.spec.command import named, runs_of

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
    cells: dict[str, str]  # what stands in it, by column

    def text(self, column: str) -> str:
        """Return the text in a column; nothing if there is no such column."""
        return self.cells.get(column, "")

    def wrong(self, column: str, why: str) -> BadSetting:
        return BadSetting(f"{self.where}, column {column}: {why}")

    def words(self, column: str) -> list[str]:
        """Return what ``+`` joins in a cell; nothing for ``-``."""
        return [word.strip() for word in self.text(column).split("+") if word.strip() not in {"", "-"}]

    @property
    def has_ended(self) -> bool:
        """Whether it need not run again, by its Status as radT writes it."""
        return "FINISHED" in self.text("Status") or "FAILED" in self.text("Status")


def rows_of(path: Path, text: str) -> list[Row]:
    """Read all rows."""
    text = re.sub(r'"[ \t]+(?=[,\r\n]|\Z)', '"', text.removeprefix("\ufeff"))  # spaces that align columns
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    columns: list[str] = []
    rows: list[Row] = []
    line = 1
    try:
        for record in reader:
            cells, where, line = [cell.strip(" \t") for cell in record], f"{path}:{line}", reader.line_num + 1
            if not any(cells):
                continue
            if not columns:
                _check_columns(where, columns := cells)
            elif len(cells) != len(columns):
                raise BadSetting(f"{where}: {len(cells)} cells under {len(columns)} columns")
            else:
                rows.append(Row(where, dict(zip(columns, cells, strict=True))))
    except csv.Error as error:
        raise BadSetting(f'{path}:{line}: {error}: a " within a cell that begins with one is written ""') from None
    if not columns:
        _check_columns(f"{path}:1", [])
    return rows


def _check_columns(where: str, columns: Sequence[str]) -> None:
    for column in columns:
        if column not in _COLUMNS:
            close = difflib.get_close_matches(column, _COLUMNS, 1)
            meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(_COLUMNS)}"
            raise BadSetting(f"{where}: there is no column {column!r}; {meant}")
        if columns.count(column) > 1:
            raise BadSetting(f"{where}: column {column} is there twice")
    if missing := [column for column in _NEEDED if column not in columns]:
        raise BadSetting(f"{where}: column {missing[0]} is missing")


def groups_of(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows that start together, in the file's order, without groups whose runs have all ended."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.text("Experiment"), row.text("Workload")), []).append(row)
    return [group for group in groups.values() if not all(row.has_ended for row in group)]


_BY_ITSELF = ("finished", "failed", "out_of_memory", "timed_out")


def have_ended(rows: Sequence[Row], plan: GroupPlan, stored: Sequence[RunRecord]) -> bool:
    """Return whether all runs of a group have ended, by its rows or the newest group in the store that equals it.

    ``stored`` has the runs of the groups of its name, the oldest first. Runs that were broken off have not ended.
    """
    wanted = [_key(masked_plan(run)) for run in plan.runs]
    groups = [[*runs] for _, runs in groupby(stored, lambda run: run.group_id)]
    newest = next((runs for runs in reversed(groups) if [_key(run.plan) for run in runs] == wanted), None)
    if newest is None:
        return False
    if going := next((run for run in newest if run.status not in ENDED and run.began), None):
        raise BadSetting(f"{rows[0].where}: {going.id} goes on; wait, or end it: penstock runs stop {going.id}")
    return all(
        row.has_ended or (run.began is not None and run.status in _BY_ITSELF)
        for row, run in zip(rows, newest, strict=True)
    )


def _key(run: RunPlan) -> tuple[object, ...]:
    return run.name, run.command, run.directory


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
