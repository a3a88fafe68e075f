"""What a schedule remembers beside the records of its runs, so that it goes on when it is started again."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from penstock.errors import BadSetting, NoSuchRun, StoreUnusable
from penstock.feed.directory import directory, usable
from penstock.linux.files import taken, written_whole
from penstock.runs.masking import add_masked, masked_plan
from penstock.runs.record import GroupPlan, RunPlan, RunRecord
from penstock.runs.store import Store


class Entry(msgspec.Struct, kw_only=True):
    """A run of a schedule."""

    name: str  # its name; no other run of the schedule has it
    group: str  # name of its group in the file
    mode: str  # mode of its group
    listeners: tuple[str, ...] | None = None  # what is sampled of it, as ``GroupPlan`` has it
    plan: RunPlan  # the run, as the file has it; secrets in it are masked
    id: str  # its record in the store; the newest, if it was started several times
    earlier: list[tuple[str, tuple[int, ...]]] = []  # its records before that, each with its GPUs
    gpus: tuple[int, ...] = ()  # numbers of the GPUs that it was started on
    feed: str = ""  # suffix of the feed that it is to read
    trained: float = 0.0  # samples that it had trained on when it was ended to be started again
    needs_gpu_alone: bool = False  # whether it ran out of memory beside others
    resumes: bool = False  # whether it is being ended, to be started again later
    index: int = 0  # its place in its group
    status: str = ""  # how it ended, once it has
    is_left_out: bool = False  # whether the file has it no more


class Expected(msgspec.Struct, frozen=True):
    """When and where a plan has a run, in seconds from the schedule's start."""

    name: str
    gpus: tuple[int, ...]
    start_s: float
    end_s: float
    starts_by_guess: bool = False  # it comes after runs of which nothing is known, or whose length is assumed
    ends_by_guess: bool = False  # or it is such a run

    @property
    def start(self) -> str:
        return f"{'~' if self.starts_by_guess else ''}{self.start_s:,.0f}"

    @property
    def end(self) -> str:
        return f"{'~' if self.ends_by_guess else ''}{self.end_s:,.0f}"


class Ledger(msgspec.Struct, kw_only=True):
    """A schedule."""

    id: str  # begins the suffixes of its feeds
    began_s: float  # when it was first started, in seconds since 1970
    entries: list[Entry]  # its runs, in the file's order
    gpus: int = 0  # how many GPUs its runs share; 0 where there are none
    expected: list[Expected] = []  # its first plan
    coming: list[Expected] = []  # its newest plan, of the runs that had not ended then
    feeds: int = 0  # number of the suffixes that have been used
    is_over: bool = False  # whether it has ended; the next one of its file begins anew

    def new_feed(self) -> str:
        """Return a suffix that no feed of this schedule has had."""
        self.feeds += 1
        return f"{self.id}{self.feeds}"


class LedgerFile:
    """The ledger of a file of runs, in the store."""

    def __init__(self, store: Store, spec: Path) -> None:
        digest = hashlib.sha256(str(spec.resolve()).encode()).hexdigest()
        self._path = store.folder / "schedules" / f"{digest[:16]}.json"

    def read(self) -> Ledger | None:
        """Return the schedule that was begun and is not over; None if there is none."""
        try:
            ledger = msgspec.json.decode(self._path.read_bytes(), type=Ledger)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise StoreUnusable(
                f"{self._path}: another version of Penstock has begun a schedule of this file ({error}): end its "
                "runs (penstock runs ls, penstock runs stop), then remove the file"
            ) from None
        return None if ledger.is_over else ledger

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


def ledger_of(groups: Sequence[GroupPlan], before: Ledger | None) -> Ledger:
    """Return a file's schedule: the one that was begun, as the file is now, or a new one.

    A run that was begun is known by its group, name, command and how it shares; what else the file says of it may
    have changed. Those of a new run have no record yet; those that the file has no more come last.
    """
    left = dict[bytes, list[Entry]]()
    for entry in before.entries if before else ():
        left.setdefault(_key(entry), []).append(entry)
    entries = list[Entry]()
    for group in groups:
        for index, run in enumerate(group.runs):
            plan = masked_plan(run)
            new = Entry(name=run.name, group=group.name, mode=group.mode, plan=plan, id="", index=index)
            entry = known.pop(0) if (known := left.get(_key(new))) else new
            entry.plan, entry.mode, entry.listeners, entry.index = plan, group.mode, group.listeners, index
            entry.is_left_out = False
            entries.append(entry)
    for entry in (each for some in left.values() for each in some):
        entry.is_left_out = True
        entries.append(entry)
    _name_apart(entries)
    if before:
        return msgspec.structs.replace(before, entries=entries)
    return Ledger(id="", began_s=time.time(), entries=entries)


def begin(store: Store, groups: Sequence[GroupPlan], ledger: Ledger) -> dict[str, RunRecord]:
    """Give each run of a schedule a record in the store, this process's to start; return them by id, unmasked.

    Runs that the file has no more, and that wait, end.
    """
    entries, records = iter(ledger.entries), dict[str, RunRecord]()
    for group in groups:
        its = [next(entries) for _ in group.runs]
        new = [run for run, entry in zip(group.runs, its, strict=True) if not entry.id]
        added = iter(add_masked(store, msgspec.structs.replace(group, runs=tuple(new))) if new else ())
        for run, entry in zip(group.runs, its, strict=True):
            with suppress(NoSuchRun):  # somebody has removed it
                record = store.run(entry.id) if entry.id else next(added)
                store.own(record.group_id)
                entry.id = record.id
                records[record.id] = msgspec.structs.replace(record, plan=run)
    for entry in entries:
        with suppress(NoSuchRun):
            if store.run(entry.id).began is None:
                store.ended(entry.id, "killed", None, "never began: its file has it no more")
    ledger.id = ledger.id or ledger.entries[0].id[:3]
    return records


def once_more(store: Store, entry: Entry, plan: RunPlan) -> RunRecord:
    """Add a run that has ended to the store again, as it was; return its new record."""
    group = GroupPlan(name=entry.group, mode=entry.mode, runs=(plan,), listeners=entry.listeners)
    (new,) = add_masked(store, group)
    entry.earlier.append((entry.id, entry.gpus))
    entry.id, entry.status = new.id, ""
    return new


def _key(entry: Entry) -> bytes:
    plan = entry.plan
    return msgspec.json.encode((entry.group, plan.name, plan.command, plan.directory, plan.share))


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


@contextmanager
def claimed(names: Sequence[str]) -> Generator[None]:
    """Claim parts of this machine for this process, until the block or the process ends.

    They are named each once: "GPU " and a UUID, "GPU 0 (simulated)", "the CPUs".
    """
    with ExitStack() as claims:
        for name in sorted(names):  # of two who want the same, one gets all
            claims.enter_context(_claim(name))
        yield


@contextmanager
def _claim(name: str) -> Generator[None]:
    path = directory() / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.claim"
    with ExitStack() as undo:
        with usable(path.parent):
            fd = _locked(path, name)
            undo.callback(os.close, fd)
            undo.callback(path.unlink, missing_ok=True)
            os.ftruncate(fd, 0)
            os.write(fd, str(os.getpid()).encode())
        yield


def _locked(path: Path, name: str) -> int:
    while True:
        try:
            return taken(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        except BlockingIOError:
            with suppress(FileNotFoundError):  # it has been given up since
                raise BadSetting(
                    f"another penstock schedule run (process {path.read_text() or 'that begins'}) uses {name}: "
                    "wait for it, or give other GPUs"
                ) from None
