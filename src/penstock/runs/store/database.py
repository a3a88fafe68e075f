"""The store's database: its schema and lock, rows as records, and whether noted processes live."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
import warnings
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from functools import cache, partial
from pathlib import Path

import msgspec

from penstock.errors import StoreUnusable
from penstock.linux.files import lock_file, locked, opened, written_whole
from penstock.linux.process import start_ticks
from penstock.runs.keeper.link import ENDED_LINK
from penstock.runs.record import ENDED, RunPlan, RunRecord, Status
from penstock.runs.store.folder import network_file_system, usable
from penstock.runs.store.parameters import given


class Noted(msgspec.Struct, frozen=True):
    """A process: its number, when it started in clock ticks since boot, and the place where that number holds.

    The place is a machine, one boot of it, and a namespace of processes.
    """

    pid: int
    started_ticks: int
    place: tuple[str, str, str]

    def lives(self) -> bool:
        """Return whether it lives, as far as this process can know."""
        (machine, boot, namespace), here = self.place, this_place()
        if boot != here[1]:
            return machine != here[0]  # another machine's: who knows
        return namespace != here[2] or start_ticks(self.pid) == self.started_ticks


@cache
def this_place() -> tuple[str, str, str]:
    """Return where this process runs: machine, boot, namespace of processes."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return os.uname().nodename, boot, os.readlink("/proc/self/ns/pid")


def this_process() -> Noted:
    """Note this process down."""
    started_ticks = start_ticks(os.getpid())
    assert started_ticks is not None
    return Noted(os.getpid(), started_ticks, this_place())


_BUSY_S = 30.0

STEPS = [
    """
    CREATE TABLE groups (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT UNIQUE NOT NULL,
        name TEXT NOT NULL,
        mode TEXT NOT NULL,
        listeners TEXT NOT NULL,
        added REAL NOT NULL,
        owner TEXT NOT NULL
    );
    CREATE TABLE runs (
        id TEXT PRIMARY KEY,
        group_id TEXT NOT NULL REFERENCES groups (id),
        position INTEGER NOT NULL,
        plan TEXT NOT NULL,
        status TEXT NOT NULL DEFAULT 'waiting',
        exit_code INTEGER,
        reason TEXT NOT NULL DEFAULT '',
        began REAL,
        ended REAL,
        keeper TEXT,
        pid INTEGER,
        UNIQUE (group_id, position)
    )
    """,
    """
    ALTER TABLE runs ADD COLUMN note TEXT NOT NULL DEFAULT '';
    ALTER TABLE runs ADD COLUMN tags TEXT NOT NULL DEFAULT '[]';
    ALTER TABLE runs ADD COLUMN archived INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE runs ADD COLUMN deleted REAL;
    CREATE INDEX deleted_runs ON runs (deleted) WHERE deleted IS NOT NULL
    """,
]
"""Statements from each version of the schema to the next; user_version counts those a database has taken."""


def connect(path: Path) -> sqlite3.Connection:
    """Open the database, made or migrated if needed."""
    network = network_file_system(path.parent)
    with usable(path):
        # SQLite takes a file system that refuses its locks for one that is busy, and waits.
        flags = os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC
        with opened("r", os.open, path.with_name("lock"), flags, 0o600) as probe, suppress(BlockingIOError):
            lock_file(probe, fcntl.LOCK_SH | fcntl.LOCK_NB, "lockf")
        connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            connection.text_factory = partial(str, encoding="utf-8", errors="replace")
            connection.execute("PRAGMA foreign_keys = ON")
            wanted = "delete" if network else "wal"
            if _version(connection, path) < len(STEPS) or _mode(connection) != wanted:
                with locked(path.with_name("lock")):
                    before = _version(connection, path), _mode(connection)
                    _migrate(connection, path, before[0])
                    connection.execute(f"PRAGMA journal_mode = {wanted}")
                if network and (not before[0] or before[1] != wanted):
                    warnings.warn(
                        f"the store {path.parent} lies on {network}: it works without a write-ahead log there, "
                        "slower with many runs. PENSTOCK_STORE may name a folder on a local disk",
                        stacklevel=4,
                    )
            if not network:  # with a log, no death of a process needs more
                connection.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            connection.close()
            raise
    return connection


@contextmanager
def writing(connection: sqlite3.Connection) -> Generator[None]:
    """Hold the one lock of all writers, and commit at the end; an exception undoes what was done."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # nothing was begun, or a full disk has undone it
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection, path: Path) -> int:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(STEPS):
        raise StoreUnusable(
            f"a newer Penstock has written the store {path.parent}: its version is {version}, this Penstock knows "
            f"versions up to {len(STEPS)}. Update Penstock, or set PENSTOCK_STORE to another folder"
        )
    return version


def _mode(connection: sqlite3.Connection) -> str:
    return connection.execute("PRAGMA journal_mode").fetchone()[0]


def _migrate(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """Bring the database to the last version, and leave a copy of the old one beside it."""
    if 0 < version < len(STEPS):
        copy = path.with_name(f"{path.name}.version-{version}")
        with written_whole(copy) as half, closing(sqlite3.connect(half)) as target:
            connection.backup(target)
    with writing(connection):
        for step in STEPS[version:]:
            for statement in step.split(";"):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(STEPS)}")


SELECT = (
    "SELECT runs.*, groups.name AS group_name, groups.mode, groups.owner, groups.added "
    "FROM (SELECT * FROM runs WHERE (deleted IS NOT NULL) = ?) AS runs LEFT JOIN groups ON groups.id = group_id"
)
"""Rows of the runs that are there, or, if its first value is true, of those that were deleted."""

_PLAIN = (
    "status",
    "began",
    "ended",
    "exit_code",
    "position",
    "pid",
    "group_name",
    "mode",
    "added",
    "reason",
    "note",
)
_TYPES = tuple[Status, float | None, float | None, int | None, int, int | None, str, str, float, str, str]


def record_of(row: sqlite3.Row, store: Path) -> RunRecord:
    """Make a record of a row that ``SELECT`` gives; that of a damaged row says so, and can be removed."""
    try:
        msgspec.convert([row[name] for name in _PLAIN], _TYPES)
        return _whole_record(row, store)
    except (ValueError, TypeError) as error:
        keeper = None
        with suppress(ValueError, TypeError):
            keeper = msgspec.json.decode(row["keeper"], type=Noted)
        lives = keeper is not None and keeper.lives() and row["status"] not in ENDED
        return RunRecord(
            id=str(row["id"]),
            name="damaged",
            group=str(row["group_name"]),
            group_id=str(row["group_id"]),
            mode=str(row["mode"]),
            index=0,
            status=row["status"] if row["status"] in ENDED else "running" if lives else "lost",
            keeper=(keeper.pid, keeper.started_ticks) if keeper and lives else None,
            reason=f"its row in the database is damaged: {error}",
            plan=RunPlan(command=("?",), name="damaged", directory="?"),
        )


def _whole_record(row: sqlite3.Row, store: Path) -> RunRecord:
    """Make a record of a row; the run is "lost" if its keeper or starter does not live."""
    status, began, ended = row["status"], row["began"], row["ended"]
    keeper = msgspec.json.decode(row["keeper"], type=Noted) if row["keeper"] else None
    watched = keeper or msgspec.json.decode(row["owner"], type=Noted)
    exit_code, reason = row["exit_code"], row["reason"]
    if status not in ENDED and (link := store / row["id"] / ENDED_LINK).is_symlink():
        status, code = os.readlink(link).split()
        exit_code, reason, ended = int(code), "the disk was full: more is not recorded", link.lstat().st_mtime
    elif status not in ENDED and not watched.lives():
        status, ended = "lost", _last_sign(store / row["id"], began or row["added"])
    plan = msgspec.json.decode(row["plan"], type=RunPlan)
    return RunRecord(
        id=row["id"],
        name=plan.name,
        group=row["group_name"],
        group_id=row["group_id"],
        mode=row["mode"],
        index=row["position"],
        status=status,
        exit_code=exit_code,
        reason=reason,
        began=began,
        seconds=None if began is None else max(0.0, (ended or time.time()) - began),
        plan=plan,
        given=given(store / row["id"], ended=status in ENDED),
        keeper=(keeper.pid, keeper.started_ticks) if keeper else None,
        pid=row["pid"],
        note=row["note"],
        tags=msgspec.json.decode(row["tags"], type=tuple[str, ...]),
        archived=bool(row["archived"]),
    )


def _last_sign(folder: Path, began: float) -> float:
    """Return when a lost run last wrote something."""
    last = began
    for path in (*folder.glob("*"), *folder.glob("series/*")):
        with suppress(FileNotFoundError):
            last = max(last, path.stat().st_mtime)
    return last
