"""Runs that have ended as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from penstock.runs.record import RunRecord
from penstock.terminal import printable


def ended_table(runs: Sequence[RunRecord]) -> Table:
    """Show how runs ended."""
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "id", "status"):
        table.add_column(heading)
    for heading in ("exit code", "seconds"):
        table.add_column(heading, justify="right")
    table.add_column("reason")
    for run in runs:
        code = "" if run.exit_code is None else str(run.exit_code)
        seconds = "" if run.seconds is None else f"{run.seconds:,.1f}"
        table.add_row(printable(run.name), run.id, run.status, code, seconds, printable(run.reason))
    return table
