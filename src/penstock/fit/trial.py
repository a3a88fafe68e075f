"""What copies of a command were measured to take, as runs of theirs tell it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from penstock.autosharing.options import ShareOptions
from penstock.linux.files import taken
from penstock.linux.leftovers import remove_abandoned
from penstock.runs.compare import group_figures
from penstock.runs.figures import training
from penstock.runs.record import RunRecord
from penstock.runs.spec.command import base_name, named, runs_of
from penstock.runs.store import Series, Store
from penstock.runs.trial import (
    MEASURED,
    MUCH,
    WARM_BATCHES,
    Bounds,
    LoopRates,
    MeasuredTrial,
    TrialRunner,
    batches_of,
)

_NO_MEMORY = (
    *("can't allocate memory", "Cannot allocate memory", "MemoryError"),
    *("is killed by signal: Killed", "is killed by signal: Bus error"),
)


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What copies of a command took at one setting, all of them together."""

    value: int  # the setting: a batch size, a number of workers, or of copies
    share: bool = False  # whether they read one feed
    samples_per_s: float = 0.0  # samples that they were given in a second of their loops; 0 if they failed
    batch: float = 0.0  # samples of a batch
    waiting: float = 0.0  # part of their loops in which they waited for data, from 0 to 1
    memory_bytes: int = 0  # the most that they held at one moment, on one GPU or of the host; 0 where nobody knows
    processes: int = 0
    """The most that they had at one moment, once each had had its first batches; 0 where a feed loads."""
    busy_cores: float = 0.0  # cores that they kept busy, their feed among them; 0 where nobody knows
    first_s: float = 0.0  # seconds until each had its first batch
    seconds: float = 0.0  # seconds that the trial took
    advice: str = ""  # the kind of ``RunAdvice`` for the first of them
    failed: str = ""  # why nothing was measured; else empty
    out_of_memory: bool = False  # whether that was for want of memory
    run_id: str = ""  # the first of them in the store

    @property
    def name(self) -> str:
        return f"{self.value:,}{' shared' * self.share}"


def trial_of(
    runs: Sequence[RunRecord],
    series: Mapping[str, Mapping[str, Series]],  # their series, by id
    trial: MeasuredTrial,  # in which they ran
    *,
    memory_bytes: int,  # the most that they held of the host; 0 where that does not count
    share: bool,  # whether they were to read one feed
) -> Trial:
    """Return what runs that have ended took together."""
    over, first_s = trial.over, trial.first_s
    loops = [LoopRates.of(series[run.id], trial.warm_batches, trial.since_s) for run in runs]
    known = [loop for loop in loops if loop is not None]
    failed = over or _failed(runs, series, measured=len(known))
    if failed:
        lacked = over == MUCH or any(map(_lacked_memory, runs))
        return Trial(value=0, failed=failed, out_of_memory=lacked, memory_bytes=memory_bytes, first_s=first_s)
    since_s = max(loop.since_s for loop in known)
    late = [_after(run, since_s) for run in runs]
    figures = group_figures(late, lambda run: {name: _cut(each, since_s) for name, each in series[run.id].items()})
    if share and not all(run.on_feed for run in figures.runs):
        return Trial(value=0, failed="its loader cannot be shared: penstock run --share --explain says why")
    on_gpus = [each["gpu.memory_bytes"].values.max() for each in series.values() if "gpu.memory_bytes" in each]
    return Trial(
        value=0,
        samples_per_s=sum(loop.samples_per_s for loop in known),
        batch=known[0].batch,
        waiting=float(np.mean([loop.waiting for loop in known])),
        memory_bytes=memory_bytes or int(sum(on_gpus)),
        busy_cores=trial.runner.cpu_s / trial.runner.seconds if trial.runner.seconds else 0.0,
        first_s=first_s,
        processes=0 if any(run.on_feed for run in figures.runs) else trial.runner.processes,
        advice=next((each.kind for each in figures.advice.values()), ""),
    )


def _failed(runs: Sequence[RunRecord], series: Mapping[str, Mapping[str, Series]], *, measured: int) -> str:
    """Return why nothing is known of runs; empty if all that is wanted is."""
    for run in runs:
        ended_by_us = run.status == "killed" and run.reason.startswith(MEASURED)
        if run.status != "finished" and not ended_by_us:
            return f"{run.status.replace('_', ' ')}: {run.reason}"
    if measured == len(runs):
        return ""
    batches = min(batches_of(series[run.id]) for run in runs)
    if batches and any(f"{training(series[run.id])}samples" not in series[run.id] for run in runs):
        return "nobody can count its batches' samples: give its loader a batch_size"
    if any(run.status == "killed" for run in runs):
        return f"its steps are too slow: it asked for {batches:,.0f} batches; --first-batch gives it longer"
    return (
        "it asked no torch DataLoader and no feed for more than a few batches: without one nothing can be "
        "measured, and with one let it run for more epochs"
    )


def _lacked_memory(run: RunRecord) -> bool:
    return run.status == "out_of_memory" or any(text in run.reason for text in _NO_MEMORY)


def _after(run: RunRecord, since_s: float) -> RunRecord:
    """Return a run as if it had begun at a moment."""
    began_s, seconds = run.began or 0.0, run.seconds or 0.0
    return replace(run, began=since_s, seconds=max(0.1, began_s + seconds - since_s))


def _cut(series: Series, since_s: float) -> Series:
    late = series.times_s >= since_s
    return Series(series.times_s[late], series.values[late]) if late.any() else series


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


class ScriptTrials:
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
            runs = runs_of(
                "the command",
                self._script.at(value),
                str(folder),
                name=f"{self._setting}={value}{' shared' * share}",
                repeats=copies,
                watch_dataloader=True,
                share=ShareOptions() if share else None,
            )
            runner = TrialRunner(
                self._store,
                named(runs),
                group=self._group,
                to=self.group_id,
                listeners=None if share else self._listeners,
                variables={"TMPDIR": str(folder.parent / _TEMPORARY)},
            )
            self.group_id = runner.records[0].group_id
            trial = MeasuredTrial(runner, self._bounds, warm=warm, drains=share)
            ended = trial.run()
            series = {run.id: self._store.series(run.id) for run in ended}
        knows_memory = self._bounds.memory_bytes is not None
        found = trial_of(ended, series, trial, memory_bytes=runner.memory_bytes * knows_memory, share=share)
        took_s = time.monotonic() - began_s
        return replace(found, value=value, share=share, run_id=ended[0].id, seconds=took_s)


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
