"""Parameters that a script gives its run: lines of JSON in the run's folder."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import msgspec

PARAMETERS = "parameters.jsonl"
"""In the run's folder: a line for each time that some were given, a dict of texts."""


def given(folder: Path, *, ended: bool) -> dict[str, str]:
    """Return what a run's script has given, by name; of what was given twice, the last."""
    return _once(folder) if ended else _read(folder)


@lru_cache(maxsize=20_000)
def _once(folder: Path) -> dict[str, str]:
    return _read(folder)


def _read(folder: Path) -> dict[str, str]:
    found = dict[str, str]()
    with suppress(OSError):
        for line in (folder / PARAMETERS).read_bytes().splitlines():
            with suppress(ValueError):  # of one who was killed
                found |= msgspec.json.decode(line, type=dict[str, str])
    return found
