"""Runs for other programs: all their points in a file, CSV or Parquet, and a table of pandas' for notebooks."""

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
from penstock.runs.figures import extremes, newest_at, newest_values, run_figures, steps_of
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
    parameters = sorted({name for run in runs for name in run.parameters})
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
            its = run.parameters
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
            its = run.parameters
            texts = [run.id, run.name, run.group, name, run.mode, run.status, *map(its.get, parameters)]
            columns = [arrow.repeat(arrow.scalar(text, arrow.string()), len(values)) for text in texts]
            columns[4:4] = [arrow.array(times_s), arrow.array(steps, mask=np.isnan(steps)), arrow.array(values)]
            writer.write_table(arrow.Table.from_arrays(columns, schema=schema))
            points += len(values)
    return points


_TEXTS = ["name", "group", "group_id", "mode", "status", "reason", "note", "tags"]


def load_runs(*groups: str, store: str | Path | None = None) -> Any:
    """Return runs as a pandas ``DataFrame``: a row each, in the order in which they were added.

    The index is their ids. Columns are ``name``, ``group``, ``group_id``, ``mode``, ``status``, ``exit_code``,
    ``reason``, ``note``, ``tags`` (with spaces between), ``began`` (a time in UTC), ``seconds``; ``epoch_s``,
    ``samples``, ``cpu_s``, ``waiting``, ``copying`` and ``computing`` (parts of its time, from 0 to 1) as
    ``penstock runs show`` has them; then
    ``param.NAME`` for each parameter, a number where all of its values are, and ``last.NAME``, ``least.NAME``,
    ``most.NAME`` for each series that a script logged. What is not known is missing.

    Args:
        groups: Names or ids of groups, or ids of runs; all runs if none is given.
        store: Folder of the store; ``$PENSTOCK_STORE`` or the user's own, if None.

    Raises:
        PackageMissing: pandas is not there.
        NoSuchRun: there is no such group or run.
        StoreUnusable: there is no store in that folder.

    Examples:
        >>> runs = penstock.load_runs("my-sweep")  # doctest: +SKIP
        >>> runs.sort_values("least.eval/loss")[["param.lr", "waiting"]]  # doctest: +SKIP
    """
    require("penstock.load_runs", "notebook", "pandas")
    pandas: Any = import_module("pandas")
    with Store.open(None if store is None else Path(store), to_read=True) as opened:
        runs = opened.named(groups) if groups else opened.runs()
        rows = [_row(run, opened.series(run.id)) for run in runs]
    frame = pandas.DataFrame(rows, index=pandas.Index([run.id for run in runs], name="id"))
    for name in frame.columns.difference(_TEXTS):
        numbers = pandas.to_numeric(frame[name], errors="coerce")
        if numbers.notna().equals(frame[name].notna()):
            frame[name] = numbers
    if "began" in frame:
        frame["began"] = pandas.to_datetime(frame["began"], unit="s", utc=True)
    return frame


def _row(run: RunRecord, series: dict[str, Series]) -> dict[str, Any]:
    figures = run_figures(run, series)
    row: dict[str, Any] = {
        **{name: getattr(run, name) for name in ("name", "group", "group_id", "mode", "status", "note")},
        "tags": " ".join(run.tags),
        **{name: getattr(run, name) for name in ("exit_code", "reason", "began", "seconds")},
        **{name: getattr(figures, name) for name in ("epoch_s", "samples", "cpu_s")},
        **{name: getattr(figures.parts, name) for name in ("waiting", "copying", "computing")},
        **{f"param.{name}": value for name, value in run.parameters.items()},
    }
    for name in sorted(series):
        if not is_measured(name):
            its = extremes(newest_values(name, series))
            row |= {f"{kind}.{name}": value for kind, value in its._asdict().items()}
    return row
