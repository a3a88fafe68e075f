"""Measures what it costs to join a feed late, and what others pay for it.

python -m benchmarks.join --data FOLDER_OF_JPEGS --json benchmarks/results/join.json

Arms go by turns in one run. Accuracy is measured by ``benchmarks.accuracy``, the rest by ``benchmarks.share``.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from benchmarks.join.orders import claims_of_handing_over, claims_of_plans
from benchmarks.join.starts import claims_of_breaks, claims_of_starts, shrunk
from rich.console import Console
from rich.table import Table

from penstock.runs.machine import describe


def main(
    data: Annotated[Path, typer.Option(help="Folder of JPEGs.")],
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of what takes minutes.")] = 3,
    parts: Annotated[str, typer.Option(help="Which, separated by commas.")] = "orders,breaks,starts",
    report: Annotated[Path | None, typer.Option("--json", help="Report to write.")] = None,
) -> None:
    """Measure starts in mid-cycle, broken-off epochs, plans and hand-over beside joints."""
    machine, claims = msgspec.to_builtins(describe()), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        shrunk(data, Path(folder))
        for part in parts.split(","):
            if part == "orders":
                claims += [*claims_of_plans(7), *claims_of_handing_over(7)]
            elif part == "breaks":
                claims += claims_of_breaks(Path(folder), repeats)
            else:
                claims += claims_of_starts(Path(folder), repeats)
            if report is not None:
                report.write_text(json.dumps({"machine": machine, "claims": claims}, indent=1) + "\n")
    table = Table()
    for heading in ("claim", "measured", "spread", "target"):
        table.add_column(heading, justify="left" if heading == "claim" else "right")
    for each in claims:
        spread = "" if each["spread"] is None else " to ".join(f"{value:.3g}" for value in each["spread"])
        style = "" if each["met"] else "yellow"
        table.add_row(each["claim"], f"{each['measured']:.3g}", spread, f"{each['target']:g}", style=style)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
