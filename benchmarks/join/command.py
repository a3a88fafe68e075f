"""Measures what it costs to join a feed late, and what others pay for it.

python -m benchmarks join --data FOLDER_OF_JPEGS --json benchmarks/results/join.json

Arms go by turns in one run.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from benchmarks.claim import ResultsFile
from benchmarks.claim import report as write
from benchmarks.join.orders import claims_of_handing_over, claims_of_plans
from benchmarks.join.starts import claims_of_breaks, claims_of_starts, shrunk


def main(
    data: Annotated[Path, typer.Option(help="Folder of JPEGs.")],
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of what takes minutes.")] = 3,
    parts: Annotated[str, typer.Option(help="Which, separated by commas.")] = "orders,breaks,starts",
    report: ResultsFile = None,
) -> None:
    """Measure starts in mid-cycle, broken-off epochs, plans and hand-over beside joints."""
    claims = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        shrunk(data, Path(folder))
        for part in parts.split(","):
            if part == "orders":
                claims += [*claims_of_plans(7), *claims_of_handing_over(7)]
            elif part == "breaks":
                claims += claims_of_breaks(Path(folder), repeats)
            else:
                claims += claims_of_starts(Path(folder), repeats)
            write(claims, report)
