"""``penstock bench io`` behind its options: run with progress, show the table, save files."""

from __future__ import annotations

import importlib.util
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
    for file in (json, csv, plot):
        if file is not None and not file.absolute().parent.is_dir():
            raise BadSetting(f"{file}: its directory does not exist")
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
        json.write_bytes(as_json(report.rows))
        console.print(f"saved: {json}")
    if csv is not None:
        csv.write_text(as_csv(report.rows))
        console.print(f"saved: {csv}")
    if not measured:
        why = dict.fromkeys(f"{row.mech}: {row.note}" for row in report.rows) or report.remarks
        raise ReaderUnavailable(f"nothing could be measured. {'; '.join(why)}")
    if plot is not None:
        from penstock.bench.io.plot import save

        save(measured, plot)
        console.print(f"saved: {plot}")
    return report


def _check_picture(plot: Path) -> None:
    if plot.suffix.lower() not in _PICTURES:
        raise BadSetting(f"--plot {plot}: its name ends in one of {', '.join(_PICTURES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise BadSetting("--plot needs matplotlib: install penstock[demo]")
