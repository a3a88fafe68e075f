"""Runs in a store, as if they had run: written without running anything."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

import numpy as np

from penstock.runs.record import GroupPlan, RunPlan, RunRecord, Status
from penstock.runs.store import SeriesWriter, Store, points_file
from penstock.runs.store.database import this_process


def group(
    store: Store,
    name: str,
    *,
    runs: Sequence[str] = ("a",),
    mode: str = "plain",
    status: Status | None = "finished",
    reason: str = "",
    seconds: float = 60.0,
    series: Mapping[str, Sequence[float]] | None = None,
    began: float = 1_790_000_000.0,
    parameters: Mapping[str, str] | None = None,
    command: Sequence[str] = ("python", "train.py"),
) -> list[RunRecord]:
    """Add a group whose runs have ended, or still run below this process if ``status`` is None."""
    plan = [
        RunPlan(command=tuple(command), name=each, directory="/", parameters=dict(parameters or {}))
        for each in runs
    ]
    records = store.add(GroupPlan(name=name, mode=mode, runs=tuple(plan)))
    me = this_process()
    keeper = me.pid, 1 if status else me.started_ticks  # of one that has ended, another process has its number
    for record in records:
        store.began(record.id, keeper=keeper, pid=os.getpid(), time_s=began)
        folder = store.folder_of(record.id)
        add_series(store, record.id, series or drawn(), began, seconds)
        (folder / "output").write_text(f"{record.name} began\nepoch 0\n")
        if status:
            store.ended(record.id, status, 0 if status == "finished" else 1, reason)
            with store._lock:
                store._connection.execute("UPDATE runs SET ended = ? WHERE id = ?", (began + seconds, record.id))
            store.compact(record.id)
    return [store.run(record.id) for record in records]


def add_points(
    store: Store,
    id: str,
    name: str,
    values: Sequence[float],
    began: float,
    seconds: float,
    writer: str = "sampler",
) -> None:
    add_series(store, id, {name: values}, began, seconds, writer)


def add_series(
    store: Store,
    id: str,
    series: Mapping[str, Sequence[float]],
    began: float,
    seconds: float,
    writer: str = "sampler",
) -> None:
    file = SeriesWriter(points_file(store.folder_of(id), writer))  # one for all: each reads what is there
    for name, values in series.items():
        for time_s, value in zip(np.linspace(began, began + seconds, len(values)), values, strict=True):
            file.add(name, float(value), float(time_s))
    file.close()


def drawn(points: int = 60) -> dict[str, list[float]]:
    """Return series such as a training run has."""
    steps = range(points)
    return {
        "loss": [2 * math.exp(-step / points) for step in steps],
        "proc.cpu_s": [0.8 * step for step in steps],
        "feed.wait_s": [0.4 * step for step in steps],
        "feed.loop_s": [0.9 * step for step in steps],
        "proc.rss_bytes": [5e8 + 1e6 * step for step in steps],
    }
