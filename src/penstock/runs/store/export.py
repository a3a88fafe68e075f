"""Writes the series of runs into a table: one row for each point."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from penstock.errors import BadSetting
from penstock.linux.files import written_whole
from penstock.runs.record import RunRecord
from penstock.runs.store.store import Store


def export(store: Store, runs: Iterable[RunRecord], path: Path) -> int:
    """Write all points of runs into a CSV file, which is there once it is whole; return how many.

    Raises:
        BadSetting: the file has another ending, or cannot be written.
    """
    if path.suffix != ".csv":
        raise BadSetting(f"{path}: an export ends in .csv")
    points = 0
    try:
        with written_whole(path) as half, half.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("run", "name", "group", "series", "time_s", "value"))
            for run in runs:
                for name, (times_s, values) in sorted(store.series(run.id).items()):
                    rows = zip(times_s.tolist(), values.tolist(), strict=True)
                    writer.writerows((run.id, run.name, run.group, name, f"{at:.6f}", value) for at, value in rows)
                    points += len(values)
    except OSError as error:
        raise BadSetting(f"{path} cannot be written: {error.strerror or error}") from error
    return points
