"""Runs as a table of pandas', for notebooks."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.basics.packages import require
from penstock.runs.figures import extremes, newest_values, run_figures
from penstock.runs.listeners import is_measured
from penstock.runs.record import RunRecord
from penstock.runs.store import Series, Store

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
        **{f"param.{name}": value for name, value in run.plan.settings.items()},
    }
    for name in sorted(series):
        if not is_measured(name):
            its = extremes(newest_values(name, series))
            row |= {f"{kind}.{name}": value for kind, value in its._asdict().items()}
    return row
