"""A row of the database as a record: what it says, and whether the process that should say more lives."""

from __future__ import annotations

import sqlite3
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.runs.plan import RunPlan
from penstock.runs.record import ENDED, RunRecord
from penstock.runs.store.alive import Noted

SELECT = (
    "SELECT runs.*, groups.name AS group_name, groups.mode, groups.owner, groups.added "
    "FROM runs JOIN groups ON groups.id = runs.group_id"
)


def record_of(row: sqlite3.Row, folder: Path) -> RunRecord:
    """Make a record of a row that ``SELECT`` gives; the run is "lost" if its keeper or starter does not live."""
    status, began, ended = row["status"], row["began"], row["ended"]
    keeper = msgspec.json.decode(row["keeper"], type=Noted) if row["keeper"] else None
    watched = keeper or msgspec.json.decode(row["owner"], type=Noted)
    if status not in ENDED and not watched.lives():
        status, ended = "lost", _last_sign(folder, began or row["added"])
    plan = msgspec.json.decode(row["plan"], type=RunPlan)
    return RunRecord(
        id=row["id"],
        name=plan.name,
        group=row["group_name"],
        group_id=row["group_id"],
        mode=row["mode"],
        index=row["position"],
        status=status,
        exit_code=row["exit_code"],
        reason=row["reason"],
        began=began,
        seconds=None if began is None else max(0.0, (ended or time.time()) - began),
        plan=plan,
        keeper=(keeper.pid, keeper.started_ticks) if keeper else None,
        pid=row["pid"],
    )


def _last_sign(folder: Path, began: float) -> float:
    """Return when a lost run last wrote something."""
    last = began
    for path in (*folder.glob("*"), *folder.glob("series/*")):
        with suppress(FileNotFoundError):
            last = max(last, path.stat().st_mtime)
    return last
