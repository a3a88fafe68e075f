"""The store of runs: a folder with a database, and a folder for each run."""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import msgspec

from penstock.basics.terminal import say
from penstock.errors import BadSetting, NoSuchRun, StoreUnusable
from penstock.runs.record import ENDED, GroupPlan, RunPlan, RunRecord, Status
from penstock.runs.store.database import SELECT, Noted, connect, record_of, this_place, this_process, writing
from penstock.runs.store.folder import (
    KEPT_DAYS,
    Removed,
    chosen_folder,
    disk_bytes,
    forgotten_s,
    private_folder,
    pruned,
    usable,
)
from penstock.runs.store.notes import Change, change_notes
from penstock.runs.store.points import Series

_FIRST, _LETTERS = "abcdefghjkmnpqrstuvwxyz", "abcdefghjkmnpqrstuvwxyz23456789"

_DATABASE = "runs.sqlite"
_NOT_WORTH_BYTES = 512


class Store:
    """All runs, past and present, whoever started them; any number of processes may use one store at a time.

    A run is "lost" if it was running and its keeper is dead, or if it was
    waiting and the process that would start it is dead.
    """

    def __init__(self, folder: Path, connection: sqlite3.Connection) -> None:
        self.folder = folder  # where it lies
        self._database = folder / _DATABASE
        self._connection = connection
        self._connection.row_factory = sqlite3.Row
        self._file = self._database.stat().st_ino
        self._lock = threading.Lock()

    @classmethod
    def open(cls, folder: Path | None = None, *, to_read: bool = False) -> Self:
        """Open a store, made or migrated if needed.

        Without ``folder``, it lies in ``$PENSTOCK_STORE`` or the user's data directory. One that was named is not
        made if it is opened ``to_read`` what it holds.
        """
        is_named = folder is not None or "PENSTOCK_STORE" in os.environ
        folder = folder.absolute() if folder else chosen_folder()
        if to_read and is_named and not (folder / _DATABASE).exists():
            raise StoreUnusable(
                f"there is no store of runs in {folder}: see --store and PENSTOCK_STORE; penstock run makes one"
            )
        private_folder(folder)
        return cls(folder, connect(folder / _DATABASE))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def add(self, group: GroupPlan, to: str = "") -> list[RunRecord]:
        """Add a group; its runs wait for this process, or one that calls ``own``, to start them.

        They become runs of the group with the id ``to``, after those that it has; if there is none, of a new one.
        """
        with self._lock, usable(self._database), writing(self._connection):
            taken = {id for (id,) in self._connection.execute("SELECT id FROM groups UNION SELECT id FROM runs")}
            group_id, *ids = _new_ids(1 + len(group.runs), taken)
            last = "SELECT coalesce(max(position), -1) FROM runs WHERE group_id = ?"
            first = self._connection.execute(last, (to,)).fetchone()[0] + 1
            runs = [(id, first + place, run) for place, (id, run) in enumerate(zip(ids, group.runs, strict=True))]
            group_id = to if to in taken else group_id
            self._insert(group_id, group, runs)
        return self._with_folders(group_id, ids)

    def adopt(self, runs: Sequence[RunRecord]) -> list[RunRecord]:
        """Add runs of one group of another store, under their ids; they wait for this process to start them."""
        first = runs[0]
        group = GroupPlan(name=first.group, mode=first.mode, runs=())
        with self._lock, usable(self._database), writing(self._connection):
            self._insert(first.group_id, group, [(run.id, run.index, run.plan) for run in runs])
        return self._with_folders(first.group_id, [run.id for run in runs])

    def _insert(self, group_id: str, group: GroupPlan, runs: list[tuple[str, int, RunPlan]]) -> None:
        """Insert runs of a group, and the group unless it is there, whose owner is then this process."""
        self._connection.execute(
            "INSERT INTO groups (id, name, mode, listeners, added, owner) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET owner = excluded.owner",
            (group_id, group.name, group.mode, _json(group.listeners), time.time(), _json(this_process())),
        )
        self._connection.executemany(
            "INSERT INTO runs (id, group_id, position, plan) VALUES (?, ?, ?, ?)",
            [(id, group_id, position, _json(plan)) for id, position, plan in runs],
        )

    def _with_folders(self, group_id: str, ids: Collection[str]) -> list[RunRecord]:
        """Make the folders of new runs of a group; return the runs."""
        added = [run for run in self.runs(group_id) if run.id in ids]
        for run in added:
            with usable(self.folder_of(run.id)):
                self.folder_of(run.id).mkdir(mode=0o700)
        return added

    def own(self, group_id: str) -> None:
        """Take over from the process that added a group: its waiting runs are lost if this process dies."""
        self._write("UPDATE groups SET owner = ? WHERE id = ?", _json(this_process()), group_id)

    def began(self, id: str, *, keeper: tuple[int, int] | None, pid: int, time_s: float | None = None) -> bool:
        """Note that a waiting run has begun, now or at ``time_s`` since 1970; return whether it waited until now.

        ``keeper`` is its keeper's process, in this namespace, and when that started in clock ticks since boot;
        None if that is on another machine. ``pid`` is that of its command.
        """
        noted = keeper and _json(Noted(*keeper, this_place()))
        return self._write(
            "UPDATE runs SET status = 'running', began = ?, keeper = ?, pid = ? "
            "WHERE id = ? AND status = 'waiting'",
            *(time.time() if time_s is None else time_s, noted, pid, id),
        )

    def ended(self, id: str, status: Status, exit_code: int | None, reason: str = "") -> None:
        """Note how a run has ended; later calls change nothing."""
        assert status in ENDED
        self._write(
            "UPDATE runs SET status = ?, exit_code = ?, reason = ?, ended = ? "
            "WHERE id = ? AND status IN ('waiting', 'running')",
            *(status, exit_code, reason, time.time(), id),
        )

    def run(self, id: str) -> RunRecord:
        """Return a run by its id, or by the first letters of it that no other run's id begins with."""
        found = self._read("WHERE runs.id = ?", id)
        if not found and id:
            found = self._read("WHERE substr(runs.id, 1, ?) = ? LIMIT 9", len(id), id)
        if len(found) == 1:
            return record_of(found[0], self.folder)
        if found:
            raise NoSuchRun(
                f"{len(found)} runs or more begin with {id!r}: {', '.join(row['id'] for row in found)}"
            )
        raise NoSuchRun(f"the store {self.folder} has no run {id!r}; `penstock runs ls` shows those it has")

    def runs(self, group: str | None = None, *, deleted: bool = False) -> list[RunRecord]:
        """List runs in the order in which they were added, all or those of groups of a name or id.

        If ``deleted``, they are those that were deleted and can be brought back.
        """
        order = "ORDER BY groups.number, runs.position"
        if group is None:
            rows = self._read(order, deleted=deleted)
        else:
            rows = self._read(f"WHERE groups.id = ? OR groups.name = ? {order}", group, group, deleted=deleted)
        return [record_of(row, self.folder) for row in rows]

    def named(self, words: Iterable[str]) -> list[RunRecord]:
        """List the runs of groups of these names or ids, and those whose ids these are, each once."""
        found = (run for word in words for run in self.runs(word) or [self.run(word)])
        return list({run.id: run for run in found}.values())

    def version(self) -> tuple[int, int]:
        """Return what differs once another process, or this one, has changed the records of runs."""
        if not self._database.exists():
            raise StoreUnusable(f"the store {self.folder} is gone: it was deleted while it was open")
        with self._lock, usable(self._database), closing(self._connection.cursor()) as cursor:
            return cursor.execute("PRAGMA data_version").fetchone()[0], self._connection.total_changes

    def folder_of(self, id: str) -> Path:
        """Return the folder of a run, by its whole id."""
        return self.folder / id

    def annotate(self, ids: Iterable[str], change: Change) -> list[RunRecord]:
        """Change what is noted of runs: of all of them, or of none; return them as they are then."""
        chosen = list({self.run(id).id: None for id in ids})
        with self._changing():
            change_notes(self._connection, chosen, change)
        return [self.run(id) for id in chosen]

    def delete(self, ids: Iterable[str]) -> list[RunRecord]:
        """Delete runs that have ended: nothing lists them any more, but ``restore`` brings them back for 7 days.

        Then their files go with the next deletion or removal, or when ``penstock web`` starts.
        """
        runs = list({run.id: run for run in map(self.run, ids)}.values())
        if going := [f"{run.id} ({run.status})" for run in runs if run.status not in ENDED]:
            shown = ", ".join(going[:5]) + f" and {len(going) - 5} more" * (len(going) > 5)
            raise BadSetting(f"not ended yet: {shown}. Stop them first, or wait; nothing was deleted")
        with self._changing():
            marks = [(time.time(), run.id) for run in runs]
            self._connection.executemany("UPDATE runs SET deleted = ? WHERE id = ?", marks)
        self.forget()
        return runs

    def restore(self, ids: Iterable[str]) -> list[RunRecord]:
        """Bring deleted runs back: all of them, or none; those that are back already stay."""
        chosen = list(dict.fromkeys(ids))
        with self._changing():
            for id in chosen:
                if not self._connection.execute("UPDATE runs SET deleted = NULL WHERE id = ?", (id,)).rowcount:
                    raise NoSuchRun(
                        f"run {id!r} is gone for good, as after {KEPT_DAYS} days; none was brought back"
                    )
        return [self.run(id) for id in chosen]

    def forget(self) -> None:
        """Remove for good what was deleted more than 7 days ago, as far as the disk allows it now."""
        if self._read("WHERE runs.deleted < ?", forgotten_s(), deleted=True):
            with suppress(StoreUnusable):
                self._remove([])

    def remove(self, ids: Iterable[str], *, force: bool = False) -> list[Removed]:
        """Remove runs that have ended, with their folders.

        With ``force``, so are those of another machine or container, though they may still go on.
        """
        runs = {run.id: run for run in map(self.run, ids)}.values()
        going = [run for run in runs if run.status not in ENDED]
        if alive := [f"{run.id} ({run.status})" for run in going if not (force and self._is_elsewhere(run))]:
            why = "They run here: stop" if force else "Stop"
            also = (
                "" if force else ". Runs of another machine or container: --force, once you know that they ended"
            )
            raise BadSetting(
                f"not ended yet: {', '.join(alive)}. {why} them first, or wait; nothing was removed{also}"
            )
        removed = [Removed(run, disk_bytes(self.folder_of(run.id))) for run in runs]
        self._remove(removed)
        return removed

    def prune(
        self, *, keep_s: float | None = None, max_bytes: int | None = None, dry_run: bool = False
    ) -> list[Removed]:
        """Remove deleted runs, then the oldest that have ended, until those left are young and small enough.

        A run is kept for ``keep_s`` after its end, if the folders of all take ``max_bytes`` at most. A dry run
        removes nothing.
        """
        deleted = self.runs(deleted=True)
        runs = [Removed(run, disk_bytes(self.folder_of(run.id))) for run in (*deleted, *self.runs())]
        ends = {run.id: 0.0 for run in deleted}
        ends |= {run.id: self._end_of(run) for run, _ in runs if run.status in ENDED and run.id not in ends}
        removed = pruned(runs, ends, keep_s, max_bytes)
        if not dry_run:
            self._remove(removed, {run.id for run in deleted})
        return removed

    def environment(self, id: str) -> dict[str, Any] | None:
        """Return what a run ran in, as far as it can be read; None if that has not been described."""
        try:
            return msgspec.json.decode((self.folder_of(id) / "environment.json").read_bytes(), type=dict[str, Any])
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:  # its writer was killed, or it is damaged
            return {"environment": f"unreadable: {error}"}

    def series(self, id: str, wanted: Callable[[str], object] | None = None) -> dict[str, Series]:
        """Return series of a run by name, all or those whose names are wanted, whatever writers there were."""
        from penstock.runs.store.merged import read_series

        return read_series(self.folder_of(id) / "series", wanted)

    def damage(self, id: str) -> str:
        """Return in a sentence how many points of a run's series are gone; "" if its files are whole."""
        from penstock.runs.store.merged import lost_points

        lost = lost_points(folder := self.folder_of(id) / "series")
        return f"points of run {id} that are gone: about {lost:,}; files in {folder} are damaged" if lost else ""

    def names(self, id: str) -> list[str]:
        """Return the names of a run's series."""
        from penstock.runs.store.merged import read_names

        return read_names(self.folder_of(id) / "series")

    def compact(self, id: str) -> None:
        """Compress the series of a run that has ended into one file; a death at any moment loses nothing.

        A few points stay as they are: a run that ends at once waits for no NumPy. So does what a full disk has no
        room for, or what is damaged.
        """
        folder = self.folder_of(id) / "series"
        if sum(path.stat().st_size for path in folder.glob("*.points")) > _NOT_WORTH_BYTES:
            from penstock.runs.store.merged import compact

            try:
                compact(folder)
            except (StoreUnusable, OSError) as error:
                say(f"the series of run {id} are not compressed: {error}")

    def _is_elsewhere(self, run: RunRecord) -> bool:
        (row,) = self._read("WHERE runs.id = ?", run.id)
        return msgspec.json.decode(row["keeper"] or row["owner"], type=Noted).place != this_place()

    def _end_of(self, run: RunRecord) -> float:
        if run.began is not None and run.seconds is not None:
            return run.began + run.seconds
        return self._read("WHERE runs.id = ?", run.id)[0]["added"] or 0.0

    def _remove(self, removed: list[Removed], deleted: AbstractSet[str] = frozenset()) -> None:
        """Remove runs, but of those that were deleted none that somebody has brought back since."""
        with self._lock, usable(self.folder), writing(self._connection):
            due = self._connection.execute("SELECT id FROM runs WHERE deleted < ?", (forgotten_s(),)).fetchall()
            there = self._connection.execute("SELECT id FROM runs WHERE deleted IS NULL")
            back = {id for (id,) in there} & deleted
            for id in {*(run.id for run, _ in removed), *(id for (id,) in due)} - back:  # restored meanwhile
                self._connection.execute("DELETE FROM runs WHERE id = ?", (id,))
                with suppress(FileNotFoundError):
                    self.folder_of(id).rename(self.folder / f"{id}.removed")
            self._connection.execute("DELETE FROM groups WHERE id NOT IN (SELECT group_id FROM runs)")
        # With those that a killed process left.
        for path in self.folder.glob("??????.removed"):
            with usable(path), suppress(FileNotFoundError):  # another process removes it, too
                shutil.rmtree(path)

    @contextmanager
    def _changing(self) -> Generator[None]:
        with self._lock, usable(self._database), writing(self._connection):
            if not self._database.exists() or self._database.stat().st_ino != self._file:
                raise StoreUnusable(f"the store {self.folder} was removed since it was opened: nothing changed")
            yield

    def _write(self, statement: str, *values: object) -> bool:
        """Execute a statement; return whether it has changed anything."""
        with self._lock, usable(self._database), writing(self._connection):
            return self._connection.execute(statement, values).rowcount > 0

    def _read(self, condition: str, *values: object, deleted: bool = False) -> list[sqlite3.Row]:
        with self._lock, usable(self._database), closing(self._connection.cursor()) as cursor:
            return cursor.execute(f"{SELECT} {condition}", (deleted, *values)).fetchall()


def _new_ids(count: int, taken: set[str]) -> list[str]:
    """Choose ids at random: of ten thousand that are short enough to type, some would be equal."""
    found: dict[str, None] = {}
    while len(found) < count:
        id = secrets.choice(_FIRST) + "".join(secrets.choice(_LETTERS) for _ in range(5))
        if id not in taken:
            found[id] = None
    return list(found)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
