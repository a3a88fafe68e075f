"""Schedules in a store, as if they had run: written without running anything."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.runs.record import GroupPlan, RunPlan, Status
from penstock.runs.store import Store
from penstock.runs.store.database import this_process
from penstock.schedule.ledger import Expected, Ledger, LedgerFile, ledger_of

BEGAN = 1_790_000_000.0
Times = tuple[float, float]


class Scheduled(NamedTuple):
    """A run: where and when it was planned, ran, and is to run, in seconds from the schedule's start."""

    name: str
    gpus: tuple[int, ...] = (0,)
    planned: Times | None = None
    ran: Times | None = None
    coming: Times | None = None
    status: Status | None = "finished"
    on: tuple[int, ...] | None = None
    """Where it ran, if not where it was planned."""
    is_guess: bool = False  # whether it is a guess how long it takes


def write(
    store: Store, *runs: Scheduled, name: str = "sweep", gpus: int = 2, began: float = BEGAN, is_over: bool = True
) -> Ledger:
    """Write a schedule; runs without a status go on below this process, or wait."""
    plans = tuple(RunPlan(command=("train.py",), name=run.name, directory="/") for run in runs)
    plan = GroupPlan(name=name, runs=plans)
    entries, me = ledger_of([plan], None).entries, this_process()
    for run, entry, record in zip(runs, entries, store.add(plan), strict=True):
        entry.id, entry.gpus = record.id, (run.on or run.gpus) if run.ran else ()
        if run.ran:
            keeper = me.pid, me.started_ticks
            store.began(record.id, keeper=keeper, pid=os.getpid(), time_s=began + run.ran[0])
            if run.status:
                store.ended(record.id, run.status, 0 if run.status == "finished" else 1)
                with store._lock:
                    ended = began + run.ran[1]
                    store._connection.execute("UPDATE runs SET ended = ? WHERE id = ?", (ended, record.id))
    ledger = Ledger(
        id=entries[0].id[:3],
        began_s=began,
        entries=entries,
        gpus=gpus,
        expected=[Expected(run.name, run.gpus, *run.planned, False, run.is_guess) for run in runs if run.planned],
        coming=[
            Expected(run.name, run.on or run.gpus, *run.coming, False, run.is_guess) for run in runs if run.coming
        ],
        is_over=is_over,
    )
    LedgerFile(store, Path(f"/{name}.yaml")).write(ledger)
    return ledger


def sweep(late: float = 1.0) -> Iterator[Scheduled]:
    """Twelve runs on two GPUs, each later than planned by a factor."""
    lengths: Sequence[float] = (300, 320, 240, 260, 340, 310)
    for gpu in range(2):
        ends = [0.0, 0.0]
        for number, length_s in enumerate(lengths):
            slot = number % 2
            start_s, end_s = ends[slot], ends[slot] + length_s * (1 + 0.1 * gpu)
            ends[slot] = end_s
            yield Scheduled(
                f"r{18 if gpu else 50}-lr={0.1 / (number + 1):.3g}",
                (gpu,),
                (start_s, end_s),
                (late * start_s + number, late * end_s - 1),
            )


def going_on(store: Store, name: str = "goes on") -> Ledger:
    """Write a schedule of which three runs have ended, two run and one waits."""
    now = time.time() - BEGAN
    since = now - 600
    runs = (
        Scheduled("first", (0,), (0, 280), (0, 300)),
        Scheduled("second", (1,), (0, 150), (1, 140), status="failed"),
        Scheduled("moved", (1,), (150, 400), (301, 590), on=(0,)),
        Scheduled("both", (0, 1), (400, 700), (592, 600), (592, 890), status=None),
        Scheduled("beside", (1,), (160, 500), (145, 600), (145, 640), status=None),
        Scheduled("later", (1,), (700, 900), None, (890, 1100), status=None),
    )
    return write(store, *runs, name=name, began=BEGAN + since, is_over=False)
