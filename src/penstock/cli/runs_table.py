"""Runs as tables for a terminal of 80 columns; print them with ``soft_wrap``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.runs.compare import Comparison
from penstock.runs.glance import Glance
from penstock.runs.record import RunRecord
from penstock.terminal import printable

_MUCH_WAITING = 0.2
_STYLES = {"running": "bold cyan", "finished": "green", "waiting": "dim"}


def runs_table(runs: Sequence[RunRecord]) -> RenderableType:
    """Show runs, one a line."""
    if not runs:
        return Text("No run is in the store. Start one with: penstock run SCRIPT.py")
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for heading in ("id", "name", "group", "mode", "status"):
        table.add_column(heading, no_wrap=heading in {"id", "status"}, overflow="fold")
    for heading in ("exit", "began", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        table.add_row(
            run.id,
            printable(run.name),
            printable(run.group),
            printable(run.mode),
            _status(run),
            "" if run.exit_code is None else str(run.exit_code),
            _began(run),
            "" if run.seconds is None else f"{run.seconds:,.1f}",
        )
    return table


def run_page(
    run: RunRecord, environment: Mapping[str, Any] | None, series: Mapping[str, Mapping[str, float]], folder: Path
) -> RenderableType:
    """Show all that is known of a run."""
    facts = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    exit_code = "" if run.exit_code is None else f", exit code {run.exit_code}"
    facts.add_row("run", f"{run.id}, {printable(run.name)} of {printable(run.group)} ({printable(run.mode)})")
    facts.add_row(
        "status", Text.assemble(_status(run), exit_code, f": {printable(run.reason)}" if run.reason else "")
    )
    if run.began is not None:
        facts.add_row("began", f"{_began(run)}, {run.seconds or 0:,.1f} s")
    facts.add_row("command", printable(shlex.join(run.plan.command)))
    facts.add_row("in", printable(run.plan.directory))
    for name, value in run.plan.parameters.items():
        facts.add_row(printable(name), printable(value))
    facts.add_row("kept in", printable(str(folder)))
    for name, value in (environment or {}).items():
        shown = printable(value if isinstance(value, str) else json.dumps(value))
        facts.add_row(printable(name), shown if len(shown) <= 300 else f"{shown[:300]}… (--json has all)")
    if not series:
        return facts
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("\nseries", overflow="fold")
    for heading in ("last", "mean", "points"):
        table.add_column(f"\n{heading}", justify="right", no_wrap=True)
    for name, each in series.items():
        table.add_row(printable(name), f"{each['last']:,.6g}", f"{each['mean']:,.6g}", f"{each['points']:,}")
    return Group(facts, table)


def _status(run: RunRecord) -> Text:
    return Text(run.status, style=_STYLES.get(run.status, "bold red"))


def _began(run: RunRecord) -> str:
    return "" if run.began is None else f"{datetime.fromtimestamp(run.began):%m-%d %H:%M:%S}"


def live_table(runs: Sequence[tuple[RunRecord, Glance]]) -> RenderableType:
    """Show runs that go on, and what they do."""
    if not runs:
        return Text("No run goes on. Start one with: penstock run SCRIPT.py")
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for heading in ("\nid", "\nname", "\nstatus"):
        table.add_column(heading, no_wrap=heading != "\nname", overflow="fold")
    for heading in ("\nseconds", "CPU,\ncores", "memory,\nMiB", "read,\nMiB/s", "waits\nfor data"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("\nlogged", overflow="fold")
    for run, now in runs:
        waiting = "" if now.waiting is None else f"{now.waiting:.0%}"
        table.add_row(
            run.id,
            printable(run.name),
            _status(run),
            "" if run.seconds is None else f"{run.seconds:,.0f}",
            "" if now.cores is None else f"{now.cores:.2f}",
            "" if now.rss_bytes is None else f"{now.rss_bytes / 2**20:,.0f}",
            "" if now.read_bytes_per_s is None else f"{now.read_bytes_per_s / 2**20:,.1f}",
            Text(waiting, "bold yellow" if (now.waiting or 0) >= _MUCH_WAITING else ""),
            printable(" ".join(f"{name}={value:.4g}" for name, value in sorted(now.logged.items())[:4])),
        )
    return table


def comparison_page(comparison: Comparison) -> RenderableType:
    """Show groups beside each other, and what that says."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for heading in ("\ngroup", "\nmode"):
        table.add_column(heading, overflow="fold")
    for heading in ("\nruns", "all,\nseconds", "each,\nseconds", "CPU,\nseconds", "waits for data,\nworst run"):
        table.add_column(heading, justify="right")
    for group in comparison.groups:
        waits = [run.waiting for run in group.runs if run.waiting is not None]
        table.add_row(
            printable(group.name),
            group.mode,
            str(len(group.runs)),
            f"{group.seconds:,.1f}",
            f"{group.each_s:,.1f}",
            "" if group.cpu_s is None else f"{group.cpu_s:,.1f}",
            f"{max(waits):.0%}" if waits else "",
        )
    return Group(table, Text(), *(Text(printable(sentence), "bold green") for sentence in comparison.sentences))
