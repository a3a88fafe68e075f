"""What a schedule remembers beside the records of its runs, so that it goes on when it is started again."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.linux.files import written_whole
from penstock.runs.launch.environment import add_masked, masked_plan
from penstock.runs.record import GroupPlan, RunPlan, RunRecord
from penstock.runs.store import Store


class Entry(msgspec.Struct, kw_only=True):
    """A run of a schedule.

    Attributes:
        name: Its name; no other run of the schedule has it.
        group: Name of its group in the file.
        mode: Mode of its group.
        listeners: What is sampled of it, as ``GroupPlan`` has it.
        plan: The run, as the file has it; secrets in it are masked.
        id: Its record in the store; the newest, if it was started several times.
        earlier: Its records before that, each with its GPUs.
        gpus: Numbers of the GPUs that it was started on.
        feed: Suffix of the feed that it is to read.
        trained: Samples that it had trained on when it was ended to be started again.
        needs_gpu_alone: Whether it ran out of memory beside others.
    """

    name: str
    group: str
    mode: str
    listeners: tuple[str, ...] | None = None
    plan: RunPlan
    id: str
    earlier: list[tuple[str, tuple[int, ...]]] = []
    gpus: tuple[int, ...] = ()
    feed: str = ""
    trained: float = 0.0
    needs_gpu_alone: bool = False


class Expected(msgspec.Struct, frozen=True):
    """When and where a plan has a run, in seconds from the schedule's start."""

    name: str
    gpus: tuple[int, ...]
    start_s: float
    end_s: float


class Ledger(msgspec.Struct, kw_only=True):
    """A schedule.

    Attributes:
        id: Begins the suffixes of its feeds.
        began_s: When it was first started, in seconds since 1970.
        entries: Its runs, in the file's order.
        gpus: How many GPUs its runs share; 0 where there are none.
        expected: Its first plan.
        coming: Its newest plan, of the runs that had not ended then.
        feeds: Number of the suffixes that have been used.
        is_over: Whether it has ended; the next one of its file begins anew.
    """

    id: str
    began_s: float
    entries: list[Entry]
    gpus: int = 0
    expected: list[Expected] = []
    coming: list[Expected] = []
    feeds: int = 0
    is_over: bool = False

    def new_feed(self) -> str:
        """Return a suffix that no feed of this schedule has had."""
        self.feeds += 1
        return f"{self.id}{self.feeds}"


class LedgerFile:
    """The ledger of a file of runs, in the store.

    Args:
        store: Where the runs are.
        spec: The file that is scheduled.
    """

    def __init__(self, store: Store, spec: Path) -> None:
        digest = hashlib.sha256(str(spec.resolve()).encode()).hexdigest()
        self._store = store
        self._path = store.folder / "schedules" / f"{digest[:16]}.json"

    def read(self) -> Ledger | None:
        """Return the schedule that was begun and is not over; None for none, and if runs of it were removed."""
        with suppress(FileNotFoundError, msgspec.DecodeError):
            ledger = msgspec.json.decode(self._path.read_bytes(), type=Ledger)
            there = {record.id for record in self._store.runs()}
            if not ledger.is_over and all(entry.id in there for entry in ledger.entries):
                return ledger
        return None

    def write(self, ledger: Ledger) -> None:
        """Keep a schedule as it is now, whole or not at all."""
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        with written_whole(self._path) as half:
            half.write_bytes(msgspec.json.encode(ledger))


def newest_ledgers(store: Store, most: int) -> dict[str, Ledger]:
    """Return the schedules that were written last, each file's newest, by keys that they keep."""
    paths = (store.folder / "schedules").glob("*.json")
    found = dict[str, Ledger]()
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True)[:most]:
        with suppress(msgspec.DecodeError):  # another version of Penstock has written it
            found[path.stem] = msgspec.json.decode(path.read_bytes(), type=Ledger)
    return found


def entries_of(groups: Sequence[GroupPlan]) -> list[Entry]:
    """Return the runs of a file; none of them has a record yet."""
    entries = [
        Entry(
            name=run.name,
            group=group.name,
            mode=group.mode,
            listeners=group.listeners,
            plan=masked_plan(run),
            id="",
        )
        for group in groups
        for run in group.runs
    ]
    _name_apart(entries)
    return entries


def begun(store: Store, groups: Sequence[GroupPlan], before: Ledger | None) -> tuple[Ledger, dict[str, RunRecord]]:
    """Add the runs of a file to the store, but those that a schedule of it had begun already.

    Args:
        before: That schedule, if it has not ended. Runs of its own that the file has no more, and that wait, end.

    Returns:
        The schedule, and the records to be started, secrets included, by id.
    """
    left = {_key(entry): entry for entry in before.entries} if before else {}
    entries, records, now = list[Entry](), dict[str, RunRecord](), iter(entries_of(groups))
    for group in groups:
        pairs = [(run, next(now)) for run in group.runs]
        new = [run for run, entry in pairs if _key(entry) not in left]
        added = iter(add_masked(store, msgspec.structs.replace(group, runs=tuple(new))) if new else ())
        for run, entry in pairs:
            if earlier := left.pop(_key(entry), None):
                record = msgspec.structs.replace(store.run(earlier.id), plan=run)
                store.own(record.group_id)
            else:
                record = next(added)
                entry.id = record.id
            entries.append(earlier or entry)
            records[record.id] = record
    for entry in left.values():
        if (record := store.run(entry.id)).began is None:
            store.ended(entry.id, "killed", None, "never began: its file has it no more")
        else:
            entries.append(entry)
            records[entry.id] = record
    _name_apart(entries)
    if before:
        return msgspec.structs.replace(before, entries=entries), records
    return Ledger(id=entries[0].id[:3], began_s=time.time(), entries=entries), records


def once_more(store: Store, entry: Entry, record: RunRecord) -> RunRecord:
    """Add a run that has ended to the store again; return its new record."""
    group = GroupPlan(name=entry.group, mode=entry.mode, runs=(record.plan,), listeners=entry.listeners)
    (new,) = add_masked(store, group)
    entry.earlier.append((entry.id, entry.gpus))
    entry.id = new.id
    return new


def _key(entry: Entry) -> tuple[str, bytes]:
    return entry.group, msgspec.json.encode(entry.plan)


def _name_apart(entries: Sequence[Entry]) -> None:
    """Put the group's name before names that several have."""
    names = [entry.plan.name for entry in entries]
    for entry in entries:
        twice = names.count(entry.plan.name) > 1
        entry.name = f"{entry.group}/{entry.plan.name}" if twice else entry.plan.name
    taken = set[str]()
    for entry in entries:
        name, number = entry.name, 2
        while entry.name in taken:
            entry.name = f"{name}~{number}"
            number += 1
        taken.add(entry.name)
