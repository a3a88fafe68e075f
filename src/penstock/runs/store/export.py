"""Writes the series of runs into a table: one row for each point."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.basics.packages import require
from penstock.errors import BadSetting
from penstock.linux.files import written_whole
from penstock.runs.record import RunRecord
from penstock.runs.store.points import Series
from penstock.runs.store.store import Store

_COLUMNS = ("run", "name", "group", "series", "time_s", "value")
Part = tuple[tuple[str, str, str, str], Series]


def export(store: Store, runs: Iterable[RunRecord], path: Path) -> int:
    """Write all points of runs into a file, which is there once it is whole; return how many.

    Args:
        store: Where the runs are.
        runs: Which.
        path: ``*.csv``, or ``*.parquet`` with pyarrow.

    Raises:
        BadSetting: the file has another ending, or cannot be written.
        PackageMissing: pyarrow is not installed.
    """
    writers = {".csv": _write_csv, ".parquet": _write_parquet}
    if path.suffix not in writers:
        raise BadSetting(f"{path}: an export ends in .csv or .parquet")
    if path.suffix == ".parquet":
        require("an export to Parquet", "columns", "pyarrow")
    parts = (
        ((run.id, run.name, run.group, name), each)
        for run in runs
        for name, each in sorted(store.series(run.id).items())
    )
    try:
        with written_whole(path) as half:
            return writers[path.suffix](half, parts)
    except OSError as error:
        raise BadSetting(f"{path} cannot be written: {error.strerror or error}") from error


def _write_csv(path: Path, parts: Iterable[Part]) -> int:
    points = 0
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        for names, (times_s, values) in parts:
            rows = zip(times_s.tolist(), values.tolist(), strict=True)
            writer.writerows((*names, f"{time_s:.6f}", value) for time_s, value in rows)
            points += len(values)
    return points


def _write_parquet(path: Path, parts: Iterable[Part]) -> int:
    # It ships no types, and an extra brings it.
    pyarrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    kinds = [*[pyarrow.string()] * 4, *[pyarrow.float64()] * 2]
    schema = pyarrow.schema(list(zip(_COLUMNS, kinds, strict=True)))
    points = 0
    with parquet.ParquetWriter(path, schema) as writer:
        for names, (times_s, values) in parts:
            constant = (pyarrow.repeat(pyarrow.scalar(name), len(values)) for name in names)
            writer.write_table(pyarrow.table([*constant, times_s, values], schema=schema))
            points += len(values)
    return points
