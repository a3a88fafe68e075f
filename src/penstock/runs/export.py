"""All points of runs in a file for other programs: CSV or Parquet."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock.basics.packages import require
from penstock.errors import BadSetting
from penstock.linux.files import written_whole
from penstock.runs.figures import newest_at, steps_of
from penstock.runs.listeners import is_measured
from penstock.runs.record import RunRecord
from penstock.runs.store import Series, Store
from penstock.runs.store.columns import Floats

_COLUMNS = ("run", "name", "group", "series", "time_s", "step", "value", "mode", "status")


def export(store: Store, runs: Sequence[RunRecord], path: Path) -> int:
    """Write all points of runs into a file, which is there once it is whole; return how many.

    A line has its run, ``series``, ``time_s`` (seconds since 1970), ``step`` (what the run had logged by that
    name then; none where the series has a newer value of that step), ``value``, and ``param.NAME`` for each
    parameter that any run has. In Parquet times, steps and values are float64, all others text, null where there
    is none.
    """
    if path.suffix not in {".csv", ".parquet"}:
        raise BadSetting(f"{path}: an export ends in .csv or .parquet")
    if path.suffix == ".parquet":
        require("an export to Parquet", "columns", "pyarrow")
    write = _write_csv if path.suffix == ".csv" else _write_parquet
    parameters = sorted({name for run in runs for name in run.plan.settings})
    try:
        with written_whole(path) as half:
            return write(half, parameters, _series(store, runs))
    except OSError as error:
        raise BadSetting(f"{path} cannot be written: {error.strerror or error}") from error


class _Exported(NamedTuple):
    run: RunRecord
    name: str
    series: Series
    steps: Floats


def _series(store: Store, runs: Sequence[RunRecord]) -> Iterator[_Exported]:
    for run in runs:
        found = store.series(run.id)
        for name, series in sorted(found.items()):
            along = steps_of(name, found)
            newest = newest_at(along, every=is_measured(name))
            shown = np.full(len(along), np.nan)
            shown[newest] = along[newest]
            yield _Exported(run, name, series, shown)


def _write_csv(path: Path, parameters: Sequence[str], found: Iterator[_Exported]) -> int:
    points = 0
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow((*_COLUMNS, *(f"param.{name}" for name in parameters)))
        for run, name, (times_s, values), steps in found:
            rows = zip(times_s.tolist(), steps.tolist(), values.tolist(), strict=True)
            named = run.id, run.name, run.group, name
            its = run.plan.settings
            more = run.mode, run.status, *(its.get(name, "") for name in parameters)
            writer.writerows(
                (*named, f"{at:.6f}", "" if math.isnan(step) else step, value, *more) for at, step, value in rows
            )
            points += len(values)
    return points


def _write_parquet(path: Path, parameters: Sequence[str], found: Iterator[_Exported]) -> int:
    arrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    numbers = {"time_s", "step", "value"}
    names = [*_COLUMNS, *(f"param.{name}" for name in parameters)]
    schema = arrow.schema([(name, arrow.float64() if name in numbers else arrow.string()) for name in names])
    points = 0
    with parquet.ParquetWriter(path, schema) as writer:
        for run, name, (times_s, values), steps in found:
            its = run.plan.settings
            texts = [run.id, run.name, run.group, name, run.mode, run.status, *map(its.get, parameters)]
            columns = [arrow.repeat(arrow.scalar(text, arrow.string()), len(values)) for text in texts]
            columns[4:4] = [arrow.array(times_s), arrow.array(steps, mask=np.isnan(steps)), arrow.array(values)]
            writer.write_table(arrow.Table.from_arrays(columns, schema=schema))
            points += len(values)
    return points
