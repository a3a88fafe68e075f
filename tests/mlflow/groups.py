"""Groups of runs that have ended, with series, output and files, as the store keeps them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable

from tests.runs.store.groups import DEAD

from penstock.runs.record import GroupPlan, RunPlan, RunRecord, Status
from penstock.runs.store import SeriesWriter, Store, points_file

BEGAN = 1_700_000_000.0
MEMORY_BYTES = 8_000_000_000
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def ended_group(store: Store, name: str, statuses: Iterable[Status] = ("finished", "finished")) -> list[RunRecord]:
    """A group whose runs have ended so, with what a run usually leaves; they seem to take 25 s."""
    statuses = list(statuses)
    plans = [
        RunPlan(
            command=("python", "train.py", "--lr", f"0.{i}"),
            name=f"train lr=0.{i}",
            directory="/",
            parameters={"lr": f"0.{i}", "odd name?": "x" * 7000},
        )
        for i in range(len(statuses))
    ]
    runs = store.add(GroupPlan(name=name, mode="plain", runs=tuple(plans)))
    for i, (run, status) in enumerate(zip(runs, statuses, strict=True)):
        if status == "waiting":
            continue
        store.began(run.id, keeper=DEAD, pid=1, time_s=BEGAN + i)
        folder = store.folder_of(run.id)
        write_series(store, run, BEGAN + i)
        (folder / "output").write_bytes(b"epoch 0\nepoch 1 \xff\n")
        described = {"git": {"commit": COMMIT, "diff": ""}, "machine": {"memory_bytes": MEMORY_BYTES}}
        (folder / "environment.json").write_text(json.dumps(described))
        (folder / "files" / "deep").mkdir(parents=True)
        (folder / "files" / "deep" / "model.bin").write_bytes(bytes(range(256)) * (i + 1))
        store.ended(run.id, status, 0 if status == "finished" else 3, "" if status == "finished" else "it broke")
        # How long it took is told by when it is said to have ended.
        store._write("UPDATE runs SET ended = ? WHERE id = ?", BEGAN + i + 25, run.id)  # pyright: ignore
        store.compact(run.id)
    return store.runs(runs[0].group_id)


def write_series(store: Store, run: RunRecord, began: float) -> None:
    writer = SeriesWriter(points_file(store.folder_of(run.id), "script-1"))
    for i in range(5):
        time_s = began + 1.5 + i
        writer.add("step", 100 * i, time_s)
        writer.add("loss", math.nan if i == 2 else 1 / (i + 1), time_s)
        writer.add("recall@5", i, time_s + 0.25)  # without a step
        writer.add("recall_5", -i, time_s + 0.25)
    for i in range(25):
        time_s = began + i + 0.5
        writer.add("gpu.0.power_w", 100.0 + i, time_s)
        writer.add("gpu.0.memory_bytes", 2e9 + i, time_s)
        writer.add("host.available_bytes", MEMORY_BYTES / 4, time_s)
        writer.add("host.cpu_s", 1000.0 + i, time_s)
        writer.add("host.cpus", 4.0, time_s)
        writer.add("proc.cpu_s", 0.5 * i, time_s)
    writer.close()


def long_series(store: Store, run: RunRecord, count: int) -> list[tuple[int, float, int]]:
    """Add a metric of many points; return them as MLflow is to have them."""
    writer = SeriesWriter(points_file(store.folder_of(run.id), "script-2"))
    for i in range(count):
        writer.add("many", i / 3, BEGAN + 100 + i / 1000)
    writer.close()
    return [(round(BEGAN * 1000) + 100_000 + i, i / 3, 100 + i // 1000) for i in range(count)]
