"""``penstock doctor``: what works on this machine, and what does not, and why."""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from penstock.feed.doctor import examine


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="A list of objects, one a finding.")] = False,
) -> None:
    """Try out what Penstock needs here; status 1 if something that sharing needs does not work."""
    findings = examine()
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(findings), indent=2))
    else:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for heading in ("", "what", "finding", "what to do"):
            table.add_column(heading)
        marks = {"works": "[green]✓[/]", "limited": "[yellow]![/]", "fails": "[red]✗[/]"}
        for finding in findings:
            table.add_row(marks[finding.verdict], finding.what, finding.found, finding.remedy)
        Console().print(table)
    if any(finding.verdict == "fails" for finding in findings):
        raise typer.Exit(1)
