"""``penstock bench share`` behind its options: run with progress, show the table, save JSON and picture."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from types import FrameType

import msgspec

from penstock.basics.terminal import console
from penstock.bench.measure.progress import progress
from penstock.bench.saving import check_picture, check_writable, saved
from penstock.bench.share.plan import Settings
from penstock.bench.share.report import Report
from penstock.bench.share.run import run
from penstock.bench.share.table import shown


def share_command(settings: Settings, where: str, json: Path | None, plot: Path | None) -> Report:
    """Measure, show the table, and save files.

    Raises:
        PenstockError: as ``run``; or a file could not be written afterwards, or matplotlib is not installed.
        FunctionFailed: the user's file or function raised.
    """
    for path in filter(None, (json, plot)):
        check_writable(path)
    if plot is not None:
        check_picture(plot)
    signal.signal(signal.SIGTERM, _end)
    terminal = console()
    with progress(terminal) as tell:
        report = run(settings, where, tell)
    terminal.print(shown(report), soft_wrap=True)
    if json is not None:
        text = msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"
        saved(json, partial(json.write_bytes, text), terminal)
    if plot is not None:
        from penstock.bench.share.picture import save

        saved(plot, partial(save, report, plot), terminal)
    return report


def _end(number: int, _: FrameType | None) -> None:
    """End as after Ctrl-C, so that every process is ended."""
    raise SystemExit(128 + number)
