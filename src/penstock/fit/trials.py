"""Runs copies of a command for some seconds, and ends them."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from penstock.autosharing.options import ShareOptions
from penstock.feed.launch.feeds import stop_suffixed
from penstock.fit.trial import MEASURED, MUCH, WARM_BATCHES, Trial, batches_of, trial_of
from penstock.inject import TOGETHER
from penstock.linux.files import taken
from penstock.linux.leftovers import remove_abandoned
from penstock.linux.process import descendants, pss_bytes, unlink_shared_memory
from penstock.runs.figures import LOOPS
from penstock.runs.launch.launcher import Launcher
from penstock.runs.masking import add_masked
from penstock.runs.record import GroupPlan, RunRecord
from penstock.runs.spec.command import base_name, named, runs_of
from penstock.runs.store import Store

_LOOK_S = 0.25
_ENOUGH_BATCHES = 30
_LEAST_S = 3.0
_MOST_S = 12.0
"""Seconds after the first batches: at least so many, and at most, however few batches there are."""
_DRAINED_S = 4.0
"""Seconds in which trainers take what a feed had ready when the last of them began: it is faster than the feed."""
_KILLED_FIRST = "500"
"""What the kernel is told of a trial's processes: where memory lacks, they go before whoever measures them."""
_PREFIX = "penstock-fit-"
_TEMPORARY = ".tmp-of-trial"
_NOT_COPIED = {".git", "__pycache__"}
_COPIED_BYTES = 64 << 20
_LEAST_BYTES = 64 << 10
"""Files of a script's folder are copied up to this many bytes in all; each counts as so many at least."""


class Script(NamedTuple):
    """A command that is tried."""

    words: tuple[str, ...]  # its words; ``{}`` stands for the setting
    directory: Path  # where it is called

    @property
    def name(self) -> str:
        return base_name(self.words)

    def at(self, value: int) -> tuple[str, ...]:
        """Return its words with a setting filled in."""
        return tuple(word.replace("{}", str(value)) for word in self.words)


class Bounds(NamedTuple):
    """What a trial may take."""

    first_s: float  # seconds until the first batch
    memory_bytes: int | None  # memory of all copies, of the host; None where that of GPUs counts


class Trials:
    """Starts copies of a script, each time with another setting; they are runs of one group of a store."""

    def __init__(
        self,
        store: Store,
        script: Script,
        group: str,
        *,
        group_id: str,
        bounds: Bounds,
        setting: str,
        listens: bool,  # whether to record what CPUs, disks and processes do besides
    ) -> None:
        self._store = store  # where the runs are kept
        self._script = script
        self._group = group  # name of the group of the runs
        self.group_id = group_id  # the group, if there is one already
        self._bounds = bounds  # what each may take
        self._setting = setting  # what varies, for the names of runs
        self._listeners = None if listens or bounds.memory_bytes is None else ()

    def run(self, value: int, copies: int = 1, *, share: bool = False, warm: int = WARM_BATCHES) -> Trial:
        """Try a setting, of which the first batches do not count; no process and no feed of it is left."""
        began_s = time.monotonic()
        with _scratch(self._script.directory, self._store.folder) as folder:
            records = self._added(value, copies, folder, share=share)
            watched = _Watched(self._store, records, self._bounds, warm, folder.parent / _TEMPORARY, share=share)
            try:
                watched.run(None if share else self._listeners)
            finally:
                stop_suffixed(watched.suffix)
                unlink_shared_memory(watched.seen)
            found = watched.measured()
        for record in records:
            self._store.compact(record.id)
        took_s = time.monotonic() - began_s
        return replace(found, value=value, share=share, run_id=records[0].id, seconds=took_s)

    def _added(self, value: int, copies: int, folder: Path, *, share: bool) -> list[RunRecord]:
        runs = runs_of(
            "the command",
            self._script.at(value),
            str(folder),
            name=f"{self._setting}={value}{' shared' * share}",
            repeats=copies,
            watch_dataloader=True,
            share=ShareOptions() if share else None,
        )
        group = GroupPlan(name=self._group, mode="plain", runs=named(runs))
        added = add_masked(self._store, group, to=self.group_id)
        self.group_id = added[0].group_id
        return added


@contextmanager
def _scratch(directory: Path, store: Path) -> Generator[Path]:
    """Make a folder in which everything of a directory is found, beside what is beside that, and new files go.

    Files and folders are copies as long as they are small; larger ones are those that are there, and so is what
    is written to them. So is the store: SQLite loses its locks on a file that its process opens besides.
    """
    remove_abandoned(_PREFIX)
    base = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = taken(base, os.O_RDONLY)
    folder = base / (directory.name or "root")
    try:
        for each in directory.parent.iterdir():
            if each != directory and each.name != _TEMPORARY:
                (base / each.name).symlink_to(each)
        (base / _TEMPORARY).mkdir()
        folder.mkdir()
        left_bytes = _COPIED_BYTES
        sized = [
            (_COPIED_BYTES + 1 if store.is_relative_to(each) else _copied_bytes(each, _COPIED_BYTES), each)
            for each in directory.iterdir()
        ]
        for nbytes, each in sorted(sized):
            if nbytes > left_bytes:
                (folder / each.name).symlink_to(each)
                continue
            left_bytes -= nbytes
            if each.is_dir():
                shutil.copytree(each, folder / each.name, symlinks=True)
            else:
                shutil.copy2(each, folder)
        yield folder
    finally:
        os.close(lock)
        shutil.rmtree(base, ignore_errors=True)  # what a run's child still writes


def _copied_bytes(path: Path, most: int) -> int:
    """Return what a copy of a file or a folder counts; more than ``most`` for what is not to be copied."""
    if path.is_symlink() or not os.access(path, os.R_OK) or path.name in _NOT_COPIED:
        return most + 1
    if path.is_file():
        return max(_LEAST_BYTES, path.stat().st_size)
    if not path.is_dir():
        return most + 1
    nbytes = _LEAST_BYTES
    for each in path.iterdir():
        if nbytes > most:
            break
        nbytes += path.stat().st_size if each.is_symlink() else _copied_bytes(each, most)
    return nbytes


class _Watched:
    """Runs that are measured for a while, and then ended."""

    def __init__(
        self,
        store: Store,
        records: Sequence[RunRecord],
        bounds: Bounds,
        warm: int,
        temporary: Path,
        *,
        share: bool,
    ) -> None:
        self._store = store
        self._temporary = temporary
        self._records = records
        self._bounds = bounds
        self._warm_batches = warm
        self.suffix = f"fit-{records[0].id}"  # how the names of their feeds end
        self.processes = 0  # the most that they had at one moment, once each had had its first batches
        self.seen = set[int]()  # the numbers of all of them that were seen
        self._share = self._is_filled = share
        self._memory_bytes = 0
        self._over = ""
        self._first_s = 0.0
        self._warm_s: dict[str, float] = {}
        """When each run had had its first batches."""

    def run(self, listeners: tuple[str, ...] | None) -> None:
        """Run them until enough is known, one has ended, or a bound is passed."""
        variables = {"PENSTOCK_FEED_SUFFIX": self.suffix, "TMPDIR": str(self._temporary)}
        if self._share:
            variables[TOGETHER] = str(len(self._records))
        began_s = time.monotonic()
        with Launcher(self._store) as launcher:
            for record in self._records:
                launcher.start(record, listeners=listeners, variables=variables)
            while len(launcher.running) == len(self._records) and not self._is_enough(began_s):
                look_s = time.monotonic() + _LOOK_S
                while launcher.running and (left_s := look_s - time.monotonic()) > 0:
                    for _ in launcher.events(left_s):
                        pass
                self._look()
            for run in launcher.running:
                if self._over == MUCH:
                    run.kill(self._over)
                launcher.stop(run.record.id, self._over or MEASURED)
            launcher.end_running()

    def measured(self) -> Trial:
        """Return what was measured."""
        ended = [self._store.run(record.id) for record in self._records]
        return trial_of(
            ended,
            {run.id: self._store.series(run.id) for run in ended},
            warm=self._warm_batches,
            over=self._over,
            memory_bytes=self._memory_bytes,
            first_s=self._first_s,
            share=self._share,
            processes=self.processes,
        )

    def _is_enough(self, began_s: float) -> bool:
        now_s = time.monotonic()
        late = now_s - began_s > self._bounds.first_s
        batches = {
            record.id: batches_of(self._store.series(record.id, LOOPS.__contains__)) for record in self._records
        }
        for id, count in batches.items():
            if count >= self._warm_batches or (count and late):
                self._warm_s.setdefault(id, now_s)
        if all(batches.values()):
            self._first_s = self._first_s or now_s - began_s
        elif late:
            self._over = self._over or f"no first batch within {self._bounds.first_s:g} s (--first-batch)"
        if self._over or len(self._warm_s) < len(self._records):
            return bool(self._over)
        since_s = now_s - max(self._warm_s.values())
        if self._is_filled:
            if since_s >= _DRAINED_S:
                self._is_filled = False
                self._warm_batches = int(max(batches.values()))
                self._warm_s.clear()
            return False
        enough = min(batches.values()) >= self._warm_batches + _ENOUGH_BATCHES
        return since_s >= _MOST_S or (enough and since_s >= _LEAST_S)

    def _look(self) -> None:
        keepers = [keeper[0] for each in self._records if (keeper := self._store.run(each.id).keeper)]
        pids = [pid for keeper in keepers for pid in descendants(keeper)]
        for pid in {*pids} - self.seen:
            with suppress(OSError):  # it has ended
                Path(f"/proc/{pid}/oom_score_adj").write_text(_KILLED_FIRST)
        self.seen.update(pids)
        if len(self._warm_s) == len(self._records):
            self.processes = max(self.processes, len(pids))
        if (most := self._bounds.memory_bytes) is not None:
            taken = sum(map(pss_bytes, pids))
            self._memory_bytes = max(self._memory_bytes, taken)
            if taken > most:
                self._over = MUCH
