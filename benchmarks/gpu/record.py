"""The record of a part on a machine with a GPU: a file that exists from the beginning, whatever ends the part."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
VERSION = 1
TAIL_CHARS = 3000
_OF_SANITIZER = "========= "  # compute-sanitizer counts errors, too
_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|errors?|deselected)")


@dataclass
class Outcome:
    """The outcome of one step."""

    step: str
    status: str  # "passed", "failed", "cut off" or "not run"
    why: str = ""  # why it did not pass
    seconds: float = 0.0
    command: str = ""
    counts: dict[str, int] = field(default_factory=dict)  # numbers of tests passed, failed, skipped
    tail: str = ""  # end of its output, if it did not pass
    result: Any = None  # what it measured


@dataclass
class Record:
    """The outcome of a part."""

    part: str
    limit_s: float
    status: str = "running"  # "running", which a reader takes for "cut off", then one of a step's
    why: str = ""
    seconds: float = 0.0
    machine: dict[str, Any] = field(default_factory=dict)
    gpu: dict[str, Any] = field(default_factory=dict)
    """Names, driver and CUDA version of the GPU, from torch and the driver."""
    notes: list[str] = field(default_factory=list)  # wheels that were left out
    predictions: dict[str, str] = field(default_factory=dict)
    """What was expected before it ran, by what is measured."""
    steps: list[Outcome] = field(default_factory=list)
    version: int = VERSION

    def save(self, path: Path) -> None:
        """Write the record atomically: if killed meanwhile, the one before stays."""
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self), indent=1) + "\n")
        new.rename(path)


def read(path: Path) -> Record:
    """Read a record; one that says "running" was cut off."""
    found = json.loads(path.read_text())
    if not isinstance(found, dict) or found.get("version") != VERSION or "part" not in found:
        raise ValueError(f"{path.name} is no record of this version")
    record = Record(**{**found, "steps": [Outcome(**step) for step in found["steps"]]})
    if record.status == "running":
        record.status, record.why = "cut off", "whatever ran it was killed"
    return record


def counts_of(output: str) -> dict[str, int]:
    """Read how many tests passed, failed and were skipped from pytest's last line."""
    lines = (line for line in reversed(output.splitlines()) if not line.startswith(_OF_SANITIZER))
    last = next(filter(_COUNTS.search, lines), "")
    return {what.rstrip("s") if what == "errors" else what: int(n) for n, what in _COUNTS.findall(last)}


def plain(text: str, out: Path) -> str:
    """Remove this machine's paths from a text."""
    paths = (str(out), "OUT"), (str(ROOT), "."), (sys.prefix, "PYTHON"), (os.path.expanduser("~"), "HOME")
    for path, name in paths:
        text = text.replace(path, name) if len(path) > 1 else text
    return text
