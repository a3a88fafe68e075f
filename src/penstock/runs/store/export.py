"""Writes the series of runs into a table: one row for each point."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.errors import BadSetting
from penstock.packages import require
from penstock.runs.record import RunRecord
from penstock.runs.store.series import Series
from penstock.runs.store.store import Store

_COLUMNS = ("run", "name", "group", "series", "time_s", "value")


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
    half = path.with_name(f".{path.name}.{os.getpid()}")
    found = ((run, name, each) for run in runs for name, each in sorted(store.series(run.id).items()))
    try:
        try:
            points = writers[path.suffix](half, found)
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)
    except OSError as error:
        raise BadSetting(f"{path} cannot be written: {error.strerror or error}") from error
    return points


def _write_csv(path: Path, found: Iterator[tuple[RunRecord, str, Series]]) -> int:
    points = 0
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        for run, name, (times_s, values) in found:
            writer.writerows(
                (run.id, run.name, run.group, name, f"{time_s:.6f}", repr(value))
                for time_s, value in zip(times_s.tolist(), values.tolist(), strict=True)
            )
            points += len(values)
    return points


def _write_parquet(path: Path, found: Iterator[tuple[RunRecord, str, Series]]) -> int:
    # It ships no types, and an extra brings it.
    pyarrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    text = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    kinds = [*(text for _ in _COLUMNS[:4]), pyarrow.float64(), pyarrow.float64()]
    points = 0
    schema = pyarrow.schema(list(zip(_COLUMNS, kinds, strict=True)))
    with parquet.ParquetWriter(path, schema) as writer:
        for run, name, (times_s, values) in found:
            same = (pyarrow.array([each] * len(values), text) for each in (run.id, run.name, run.group, name))
            writer.write_table(pyarrow.table([*same, times_s, values], schema=schema))
            points += len(values)
    return points
