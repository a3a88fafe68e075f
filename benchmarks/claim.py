"""What a benchmark claims, as ``benchmarks.readme`` reads it: a target, what was measured, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import msgspec
import typer

from penstock.runs.machine import describe

ResultsFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="File for the results.")]
JpegFolder = Annotated[Path | None, typer.Option(help="Folder of JPEGs, unless these are to be drawn.")]


def claim(
    what: str, unit: str, values: Sequence[float], *, least: float | None = None, most: float | None = None
) -> dict[str, Any]:
    """Judge the median of what was measured by the least or the most that it should be."""
    measured = median(values)
    at_least, target = (True, least) if most is None else (False, most)
    assert target is not None
    return {
        "claim": what,
        "target": target,
        "unit": unit,
        "at_least": at_least,
        "measured": measured,
        "spread": (min(values), max(values)) if len(values) > 1 else None,
        "met": measured >= target if at_least else measured <= target,
    }


def report(claims: Sequence[dict[str, Any]], path: Path | None, **measured: Any) -> None:
    """Print claims; write them to a JSON file, if one is named, with all that was measured."""
    for one in claims:
        print(
            f"{one['claim']}: {one['measured']:.3g}, target {one['target']}: {'met' if one['met'] else 'missed'}"
        )
    if path:
        results = {"claims": claims, **measured, "machine": msgspec.to_builtins(describe())}
        path.write_text(json.dumps(results, indent=1) + "\n")
