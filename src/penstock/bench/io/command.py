"""``penstock bench io`` behind its options: run with progress, show the table, save files."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.text import Text

from penstock.basics.terminal import console, printable
from penstock.bench.io.plan import Settings
from penstock.bench.io.report import WIDTH, as_csv, as_json, table
from penstock.bench.io.run import Report, run
from penstock.bench.measure.progress import progress
from penstock.bench.saving import check_picture, check_writable, saved
from penstock.errors import ReaderUnavailable


def io_command(settings: Settings, path: str, json: Path | None, csv: Path | None, plot: Path | None) -> Report:
    """Measure, show the table, and save files.

    Raises:
        BadSetting: a setting is out of range, the path cannot be read, or a file could not be written afterwards.
        ReaderUnavailable: nothing could be measured; the message says why.
    """
    for file in filter(None, (json, csv, plot)):
        check_writable(file)
    if plot is not None:
        check_picture(plot)
    shown = console(width=max(WIDTH, console().width))
    with progress(shown) as tell:
        report = run(settings, path, tell)
    measured = [row for row in report.rows if row.iops]
    if measured:
        repeats = f", medians of {settings.repeats}" if settings.repeats > 1 else ""
        shown.print(table(report.rows, f"Reads of {printable(path)}{', cold' if settings.cold else ''}{repeats}"))
        for remark in report.remarks:
            shown.print(Text.assemble(("!", "yellow"), f" {printable(remark)}"), soft_wrap=True)
    if json is not None:
        saved(json, partial(json.write_bytes, as_json(report.rows)), shown)
    if csv is not None:
        saved(csv, partial(csv.write_text, as_csv(report.rows)), shown)
    if not measured:
        why = dict.fromkeys(f"{row.mech}: {row.note}" for row in report.rows) or report.remarks
        raise ReaderUnavailable(f"nothing could be measured. {'; '.join(why)}")
    if plot is not None:
        from penstock.bench.io.plot import save

        saved(plot, partial(save, measured, plot), shown)
    return report
