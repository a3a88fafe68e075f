"""Runs copies of a command for some seconds, and returns what they were measured to take."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from penstock.autosharing.options import ShareOptions
from penstock.inject import TOGETHER
from penstock.linux.process import descendants, pss_bytes
from penstock.runs.compare import group_figures
from penstock.runs.launch.environment import add_masked
from penstock.runs.launch.launcher import Launcher
from penstock.runs.record import GroupPlan, RunRecord
from penstock.runs.spec.command import base_name, named, runs_of
from penstock.runs.store import Series, Store

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOOK_S = 0.25
_WARM_BATCHES = 5
_ENOUGH_BATCHES = 30
_LEAST_S = 3.0
_MOST_S = 12.0
"""Seconds after the first batches: at least so many, and at most, however few batches there are."""
_LOOP = ("feed.samples", "feed.batches", "feed.loop_s", "feed.wait_s")
_NO_MEMORY = ("can't allocate memory", "MemoryError", "Cannot allocate memory", "is killed by signal: Killed")


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What copies of a command took at one setting, all of them together.

    Attributes:
        value: The setting: a batch size, a number of workers, or of copies.
        share: Whether they read one feed.
        samples_per_s: Samples that they were given in a second of their loops; 0 if they failed.
        batch: Samples of a batch.
        waiting: Part of their loops in which they waited for data, from 0 to 1.
        memory_bytes: The most that they held at one moment, on one GPU or of the host.
        first_s: Seconds until each had its first batch.
        seconds: Seconds that the trial took.
        epoch_s: Seconds that an epoch takes; None where none ended.
        cpu_s: CPU time that the trial took; None where nobody recorded it.
        advice: What to change first, if that is known.
        failed: Why nothing was measured; else empty.
        out_of_memory: Whether that was for want of memory.
    """

    value: int
    share: bool = False
    samples_per_s: float = 0.0
    batch: float = 0.0
    waiting: float = 0.0
    memory_bytes: int = 0
    first_s: float = 0.0
    seconds: float = 0.0
    epoch_s: float | None = None
    cpu_s: float | None = None
    advice: str = ""
    failed: str = ""
    out_of_memory: bool = False


class Script(NamedTuple):
    """A command that is tried.

    Attributes:
        words: Its words; ``{}`` stands for the setting.
        directory: Where it is called.
    """

    words: tuple[str, ...]
    directory: Path

    @property
    def name(self) -> str:
        return base_name(self.words)

    def at(self, value: int) -> tuple[str, ...]:
        """Return its words with a setting filled in."""
        return tuple(word.replace("{}", str(value)) for word in self.words)


class Bounds(NamedTuple):
    """What a trial may take.

    Attributes:
        first_s: Seconds until the first batch.
        memory_bytes: Memory of all copies, of the host; None where that of GPUs counts.
    """

    first_s: float
    memory_bytes: int | None


class Trials:
    """Starts copies of a script, each time with another setting; they are runs of one group of a store.

    Args:
        store: Where they are kept.
        script: The command.
        group: Name of their group.
        group_id: The group, if there is one already.
        bounds: What each may take.
        setting: What varies, for the names of runs.
        listens: Whether to record what CPUs, disks and processes do besides.
    """

    def __init__(
        self,
        store: Store,
        script: Script,
        group: str,
        *,
        group_id: str,
        bounds: Bounds,
        setting: str,
        listens: bool,
    ) -> None:
        self._store = store
        self._script = script
        self._group = group
        self.group_id = group_id
        self._bounds = bounds
        self._setting = setting
        self._listeners = None if listens or bounds.memory_bytes is None else ()

    def run(self, value: int, copies: int = 1, *, share: bool = False) -> Trial:
        """Try a setting; whatever a script does, nothing of it is left."""
        began_s = time.monotonic()
        with _scratch(self._script.directory) as folder:
            records = self._added(value, copies, folder, share=share)
            watched = _Watched(self._store, records, self._bounds)
            watched.run(self._listeners, share=share)
            found = watched.measured()
        for record in records:
            self._store.compact(record.id)
        return replace(found, value=value, share=share, seconds=time.monotonic() - began_s)

    def _added(self, value: int, copies: int, folder: Path, *, share: bool) -> list[RunRecord]:
        name = f"{self._setting}={value}{' shared' * share}"
        runs = runs_of(
            "the command",
            self._script.at(value),
            str(folder),
            name=name,
            repeats=copies,
            watch_dataloader=True,
            share=ShareOptions() if share else None,
        )
        group = GroupPlan(name=self._group, mode="plain", runs=named(runs))
        added = add_masked(self._store, group, to=self.group_id)
        self.group_id = added[0].group_id
        return added


@contextmanager
def _scratch(directory: Path) -> Generator[Path]:
    """Make a folder in which everything of a directory is found, and where new files go."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-fit-"))
    try:
        for each in directory.iterdir():
            (folder / each.name).symlink_to(each)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # what a run's child still writes


class _Watched:
    """Runs that are measured for a while, and then ended."""

    def __init__(self, store: Store, records: Sequence[RunRecord], bounds: Bounds) -> None:
        self._store = store
        self._records = records
        self._bounds = bounds
        self._memory_bytes = 0
        self._over = ""
        self._first_s = 0.0
        self._warm: dict[str, float] = {}
        """When each run had had its first batches."""

    def run(self, listeners: tuple[str, ...] | None, *, share: bool) -> None:
        """Run them until enough is known, one has ended, or a bound is passed."""
        variables = {TOGETHER: str(len(self._records))} if share else {}
        began_s = time.monotonic()
        with Launcher(self._store) as launcher:
            for record in self._records:
                launcher.start(record, listeners=listeners, variables=variables)
            while len(launcher.running) == len(self._records) and not self._is_enough(began_s):
                for _ in launcher.events(_LOOK_S):
                    pass
                self._look_at_memory()
            for record in self._records:
                launcher.stop(record.id, self._over or "it was measured")
            launcher.end_running()

    def _is_enough(self, began_s: float) -> bool:
        now_s = time.monotonic()
        if self._over:
            return True
        batches = {record.id: self._batches(record) for record in self._records}
        for id, count in batches.items():
            if count >= _WARM_BATCHES or (count and now_s - began_s > self._bounds.first_s):
                self._warm.setdefault(id, now_s)
        if all(batches.values()) and not self._first_s:
            self._first_s = now_s - began_s
        if len(self._warm) < len(self._records):
            if not all(batches.values()) and now_s - began_s > self._bounds.first_s:
                self._over = f"no first batch within {self._bounds.first_s:g} s"
            return bool(self._over)
        since_s = now_s - max(self._warm.values())
        enough = min(batches.values()) >= _WARM_BATCHES + _ENOUGH_BATCHES
        return since_s >= _MOST_S or (enough and since_s >= _LEAST_S)

    def _batches(self, record: RunRecord) -> float:
        found = self._store.series(record.id, "feed.batches".__eq__).get("feed.batches")
        return 0.0 if found is None else found.last or 0.0

    def _look_at_memory(self) -> None:
        most = self._bounds.memory_bytes
        if most is None:
            return
        keepers = [keeper[0] for each in self._records if (keeper := self._store.run(each.id).keeper)]
        taken = sum(pss_bytes(pid) for keeper in keepers for pid in descendants(keeper))
        self._memory_bytes = max(self._memory_bytes, taken)
        if taken > most:
            self._over = _MUCH

    def measured(self) -> Trial:
        """Return what was measured."""
        ended = [self._store.run(record.id) for record in self._records]
        series = {record.id: self._store.series(record.id) for record in ended}
        loops = [_Loop.of(series[record.id]) for record in ended]
        known = [loop for loop in loops if loop is not None]
        if failed := self._failed(ended, measured=len(known)):
            out_of_memory = self._over == _MUCH or any(map(_lacked_memory, ended))
            return Trial(value=0, failed=failed, out_of_memory=out_of_memory, memory_bytes=self._memory_bytes)
        figures = group_figures(ended, lambda run: series[run.id])
        gpu = [each["gpu.memory_bytes"] for each in series.values() if "gpu.memory_bytes" in each]
        return Trial(
            value=0,
            samples_per_s=sum(loop.samples_per_s for loop in known),
            batch=known[0].batch,
            waiting=float(np.mean([loop.waiting for loop in known])),
            memory_bytes=self._memory_bytes or int(sum(each.values.max() for each in gpu)),
            first_s=self._first_s,
            epoch_s=figures.epoch_s,
            cpu_s=figures.cpu_s,
            advice=next((each.kind for each in figures.advice.values()), ""),
        )

    def _failed(self, ended: Sequence[RunRecord], *, measured: int) -> str:
        """Return why nothing is known of runs; empty if all that is wanted is."""
        if self._over:
            return self._over
        bad = next((each for each in ended if each.status not in ("finished", "killed")), None)
        if bad is not None:
            return f"{bad.status.replace('_', ' ')}: {bad.reason}"
        if measured < len(ended):
            return "it ended before it had asked a DataLoader or a feed for enough batches"
        return ""


_MUCH = "more memory than it may take"


def _lacked_memory(run: RunRecord) -> bool:
    return run.status == "out_of_memory" or any(text in run.reason for text in _NO_MEMORY)


class _Loop(NamedTuple):
    """The loops of a run after its first batches."""

    samples_per_s: float
    batch: float
    waiting: float

    @classmethod
    def of(cls, series: Mapping[str, Series]) -> _Loop | None:
        """Return what a run's series tell; None if they tell too little."""
        if not all(name in series for name in _LOOP):
            return None
        samples, batches, loop_s, wait_s = (series[name].values for name in _LOOP)
        count = min(len(samples), len(batches), len(loop_s), len(wait_s))
        warm = np.flatnonzero(batches[:count] >= min(_WARM_BATCHES, batches[count - 1] / 2))
        if not warm.size or batches[count - 1] <= batches[warm[0]]:
            return None
        first, last = int(warm[0]), count - 1
        took_s = loop_s[last] - loop_s[first]
        given = samples[last] - samples[first]
        return cls(
            samples_per_s=float(given / took_s),
            batch=float(given / (batches[last] - batches[first])),
            waiting=float(min(1.0, (wait_s[last] - wait_s[first]) / took_s)),
        )
