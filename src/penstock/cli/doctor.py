"""``penstock doctor``: what works on this machine, what does not, and why."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.basics.terminal import printable
from penstock.cli.command import AsJson, argument, show
from penstock.doctor.checks import examine
from penstock.doctor.devices import Finding

_MARKS = {"works": ("✓", "green"), "limited": ("!", "yellow"), "fails": ("✗", "red")}
_WHAT_WIDTH = 14


def doctor(
    what: Annotated[
        Literal["machine", "ray"], argument("[ray]", "ray checks the nodes of a Ray cluster instead.")
    ] = "machine",
    as_json: AsJson = False,
) -> None:
    """Check what works on this machine, and how to fix the rest; exits with 1 if sharing cannot work."""
    if what == "ray":
        from penstock.doctor.devices import examine_ray

        findings = examine_ray()
    else:
        findings = examine()
    show(as_json, findings, lambda: Group(*map(_shown, findings)))
    if any(finding.verdict == "fails" for finding in findings):
        raise typer.Exit(1)


def _shown(finding: Finding) -> RenderableType:
    """Show what was found, and what to do below it; errors and commands are never wrapped."""
    mark = Text.assemble(_MARKS[finding.verdict], f" {printable(finding.what):<{_WHAT_WIDTH}}")
    remedy = [Text(f"    {printable(finding.remedy)}", "bold")] if finding.remedy else []
    found = printable(finding.found)
    if finding.verdict == "fails":
        return Group(Text.assemble(mark, "  ", found), *remedy)
    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_column(no_wrap=True)
    row.add_column(no_wrap=False, overflow="fold")
    row.add_row(mark, found)
    return Group(row, *remedy)
