"""Runs copies of a command for some seconds, and ends them."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from penstock.autosharing.options import ShareOptions
from penstock.fit.trial import Trial, trial_of
from penstock.linux.files import taken
from penstock.linux.leftovers import remove_abandoned
from penstock.runs.spec.command import base_name, named, runs_of
from penstock.runs.store import Store
from penstock.runs.trial import WARM_BATCHES, Bounds, MeasuredTrial, TrialRunner

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
