"""Turns records of ``make gpu`` into benchmarks/results/ and lines of docs/hardware.md: ``make gpu-report``."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.gpu.record import ROOT, Outcome, Record, read

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "hardware.md"
BEGIN, END = "<!-- what ran on a GPU: written by make gpu-report -->", "<!-- end -->"
NOTHING = "Nothing has run on a GPU yet."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``make gpu-report``."""
    asked = argparse.ArgumentParser(prog="make gpu-report", description=__doc__)
    asked.add_argument("--out", type=Path, default=ROOT / "build" / "gpu", help="folder that make gpu wrote")
    asked.add_argument("--results", type=Path, default=RESULTS)
    asked.add_argument("--page", type=Path, default=PAGE)
    given = asked.parse_args(arguments)
    for path in sorted(given.out.glob("*.json")):
        if path.name.endswith(".result.json") or path.name.startswith("private-"):
            continue
        record = read(path)
        if not any(step.status != "not run" for step in record.steps):
            print(f"{record.part}: {record.status}: {record.why}; nothing is kept of it")
            continue
        record.save(given.results / f"gpu-{_slug(record)}-{record.part.replace('/', '-')}.json")
        print(f"{record.part}: {record.status}")
    given.page.write_text(with_lines(given.page.read_text(), lines(given.results)))
    return 0


def lines(results: Path) -> list[str]:
    """Make the lines on every record that is kept: what ran, the outcome, and on what."""
    records = [read(path) for path in sorted(results.glob("gpu-*-*.json"))]
    if not records:
        return [NOTHING]
    rows = [row for record in records for row in _rows(record)]
    return ["| what | outcome | ran on |", "|---|---|---|", *rows]


def with_lines(page: str, found: list[str]) -> str:
    """Return the page with these lines in their place."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n" + "\n".join(found) + f"\n{END}{after}"


def _rows(record: Record) -> Iterator[str]:
    gpu, machine = record.gpu, record.machine
    driver = re.search(r"\d+\.\d+(\.\d+)?", gpu["driver"])
    versions = f"driver {driver[0] if driver else '?'}, torch {gpu['torch']}, Python {machine['python']}"
    where = f"{', '.join(dict.fromkeys(gpu['names']))}, {versions}, {machine['date'][:10]}"
    for step in record.steps:
        yield f"| {record.part.partition('/')[0]}: {step.step} | {_outcome(step)} | {where} |"


def _outcome(step: Outcome) -> str:
    counted = ", ".join(f"{n} {what}" for what, n in step.counts.items() if what != "deselected")
    said = "; ".join(filter(None, (counted, step.why)))
    text = f"**{step.status}**" if step.status in {"failed", "cut off"} else step.status
    return (f"{text}: {said}" if said else text).replace("|", "/").replace("\n", " ")


def _slug(record: Record) -> str:
    name = record.gpu["names"][0].lower().removeprefix("nvidia ")
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


if __name__ == "__main__":
    sys.exit(main())
