"""``penstock bench io`` behind its options: run with progress, show the table, save files."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from penstock.bench.io.plan import Settings
from penstock.bench.io.report import WIDTH, as_csv, as_json, table
from penstock.bench.io.run import Report, run
from penstock.errors import BadSetting, ReaderUnavailable

_PICTURES = (".png", ".svg", ".pdf")


def io_command(settings: Settings, path: str, json: Path | None, csv: Path | None, plot: Path | None) -> Report:
    """Measure, and tell.

    Raises:
        BadSetting: a setting is out of range, the path cannot be read, or a file could not be written afterwards.
        ReaderUnavailable: nothing could be measured; the message says why.
    """
    for file in filter(None, (json, csv, plot)):
        _check_writable(file)
    if plot is not None:
        _check_picture(plot)
    console = Console(width=max(WIDTH, Console().width))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def tell(done: int, in_all: int, what: str) -> None:
            progress.update(task, completed=done, total=in_all, description=what)

        report = run(settings, path, tell)
    measured = [row for row in report.rows if row.iops]
    if measured:
        repeats = f", medians of {settings.repeats}" if settings.repeats > 1 else ""
        console.print(table(report.rows, f"Reads of {path}{', cold' if settings.cold else ''}{repeats}"))
        for remark in report.remarks:
            console.print(f"[yellow]![/] {escape(remark)}", highlight=False)
    if json is not None:
        _save(json, partial(json.write_bytes, as_json(report.rows)), console)
    if csv is not None:
        _save(csv, partial(csv.write_text, as_csv(report.rows)), console)
    if not measured:
        why = dict.fromkeys(f"{row.mech}: {row.note}" for row in report.rows) or report.remarks
        raise ReaderUnavailable(f"nothing could be measured. {'; '.join(why)}")
    if plot is not None:
        from penstock.bench.io.plot import save

        _save(plot, partial(save, measured, plot), console)
    return report


def _check_writable(file: Path) -> None:
    """Before anything is measured: nobody waits for minutes to be told."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise BadSetting(f"{file}: its directory does not exist")
    if file.is_dir():
        raise BadSetting(f"{file} is a directory; give the name of a file")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise BadSetting(f"{file} must not be written; give another place")


def _save(file: Path, write: Callable[[], object], console: Console) -> None:
    try:
        write()
    except OSError as error:
        raise BadSetting(f"{file} could not be written: {error.strerror}") from None
    console.print(f"saved: {file}")


def _check_picture(plot: Path) -> None:
    if plot.suffix.lower() not in _PICTURES:
        raise BadSetting(f"--plot {plot}: its name ends in one of {', '.join(_PICTURES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise BadSetting("--plot needs matplotlib: install penstock[demo]")
