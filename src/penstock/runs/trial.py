"""Trials: copies that run side by side until enough is known of them: started, warmed up, looked at, ended.

Every figure that Penstock takes by running something comes from here: those of ``advise``, of ``bench share`` and
``load``, of the demo and of ``schedule profile``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from penstock.feed.launch.feeds import stop_suffixed
from penstock.inject import TOGETHER
from penstock.linux.process import CLOCK_TICK_S, descendants, pss_bytes, stat_of, unlink_shared_memory
from penstock.runs.figures import LOOPS, training
from penstock.runs.launch.launcher import Launcher
from penstock.runs.masking import add_masked
from penstock.runs.record import ENDED, GroupPlan, RunPlan, RunRecord
from penstock.runs.store import Series, Store

WARM_BATCHES = 5
MUCH = "more memory than it may take"
MEASURED = "it was measured"
OTHERS = "others of its trial did not finish"
_LOOK_S = 0.25
_DRAINED_S = 4.0
"""Seconds in which trainers take what a feed had ready when the last of them began: it is faster than the feed."""
_KILLED_FIRST = "500"
"""What the kernel is told of a trial's processes: where memory lacks, they go before whoever measures them."""
_LOOP = ("samples", "batches", "loop_s", "wait_s")


class Bounds(NamedTuple):
    """What a trial may take, and when enough is known."""

    first_s: float  # seconds until the first batch
    memory_bytes: int | None = None  # memory of all copies, of the host; None where that of GPUs counts
    least_s: float = 3.0  # seconds after the first batches, at least
    most_s: float = 12.0  # the same at most, however few batches there are
    batches: float = 30.0  # batches after the first ones that suffice
    longer: str = ""  # what gives a first batch longer, in words


class LoopRates(NamedTuple):
    """The loops of a run after its first batches."""

    samples_per_s: float
    batch: float  # samples of a batch
    waiting: float  # part of the time in which it waited for data, from 0 to 1
    since_s: float  # when those first batches had come, in seconds since 1970

    @classmethod
    def of(cls, series: Mapping[str, Series], warm: float, since_s: float = 0.0) -> LoopRates | None:
        """Return what a run's series tell of the time from ``since_s`` on; None if they tell too little."""
        found = [series.get(f"{training(series)}{name}") for name in _LOOP]
        known = [each for each in found if each]
        if len(known) < len(found):
            return None
        count = min(len(each.values) for each in known)
        samples, batches, loop_s, wait_s = (each.values[:count] for each in known)
        late = np.flatnonzero(batches >= min(warm, batches[-1] / 2))
        counted = late[known[0].times_s[:count][late] >= since_s]
        late = counted if counted.size > 1 else late
        if not late.size or batches[-1] <= batches[late[0]]:
            return None
        first = int(late[0])
        took_s, given = loop_s[-1] - loop_s[first], samples[-1] - samples[first]
        return cls(
            samples_per_s=float(given / took_s),
            batch=float(given / (batches[-1] - batches[first])),
            waiting=float(min(1.0, (wait_s[-1] - wait_s[first]) / took_s)),
            since_s=float(known[0].times_s[first]),
        )


class TrialRunner:
    """Runs copies side by side as a group of a store.

    Their feeds are their own: the names of these end in ``suffix``. Memory, processes and CPU time are those of
    all copies together, as looks at their processes show them.
    """

    def __init__(
        self,
        store: Store,
        plans: Sequence[RunPlan],
        *,
        group: str,
        to: str = "",  # the id of a group that is there, which the runs are added to
        listeners: tuple[str, ...] | None = (),  # what is sampled of them; None for all that can run here
        variables: Mapping[str, str] = {},  # environment variables that they get besides
        without: bytes = b"",  # words of a command line whose process, and what is below it, does not count
    ) -> None:
        self._store = store
        self._listeners = listeners
        self._without = without
        self.records = add_masked(store, GroupPlan(name=group, mode="plain", runs=tuple(plans)), to=to)
        self.suffix = f"trial-{self.records[0].id}"
        together = {TOGETHER: str(len(plans))} if plans[0].share else {}
        self.variables = {"PENSTOCK_FEED_SUFFIX": self.suffix, **together, **variables}
        self.why_ended = MEASURED
        self.memory_bytes = 0  # the most that they held at one moment
        self.processes = 0  # the most that they had at one moment since counting began
        self.seconds = self.cpu_s = 0.0  # since counting began
        self._counts_since = 0.0, 0.0  # of the monotonic clock, and the CPU time used by then
        self._seen = set[int]()  # the numbers of their processes
        self._used_s: dict[int, float] = {}  # CPU time of what is and was below each keeper

    def run(
        self,
        is_over: Callable[[], bool] = lambda: False,
        *,
        fewest: int = 1,  # it is over, too, once fewer of them go on
    ) -> list[RunRecord]:
        """Run them until it is over; return their records. No process and no feed of theirs is left."""
        self._counts_since = time.monotonic(), 0.0
        try:
            with Launcher(self._store) as launcher:
                for record in self.records:
                    launcher.start(record, listeners=self._listeners, variables=self.variables)
                while len(launcher.running) >= fewest and not is_over():
                    look_s = time.monotonic() + _LOOK_S
                    while launcher.running and (left_s := look_s - time.monotonic()) > 0:
                        for _ in launcher.events(left_s):
                            pass
                    self._look()
                self.seconds = time.monotonic() - self._counts_since[0]
                self.cpu_s = self.used_s - self._counts_since[1]
                for run in launcher.running:
                    if self.why_ended == MUCH:
                        run.kill(MUCH)
                    launcher.stop(run.record.id, self.why_ended)
                launcher.end_running()
        finally:
            stop_suffixed(self.suffix)
            unlink_shared_memory(self._seen)
        for record in self.records:
            self._store.compact(record.id)
        return [self._store.run(record.id) for record in self.records]

    def begin_to_count(self) -> None:
        """Count seconds, CPU time and processes from now on."""
        self._counts_since = time.monotonic(), self.used_s
        self.processes = 0

    @property
    def used_s(self) -> float:
        """CPU time that they have used so far."""
        return sum(self._used_s.values())

    def has_failed(self) -> bool:
        """Return whether one has ended without having finished: the others end, too."""
        status = {self._store.run(record.id).status for record in self.records}
        self.why_ended = OTHERS
        return bool(status & (ENDED - {"finished"}))

    def batches(self) -> list[float]:
        """Return how many batches each has had."""
        return [batches_of(self._store.series(record.id, LOOPS.__contains__)) for record in self.records]

    def _look(self) -> None:
        keepers = [keeper[0] for each in self.records if (keeper := self._store.run(each.id).keeper)]
        below = {keeper: descendants(keeper, self._without) for keeper in keepers}
        pids = [pid for each in below.values() for pid in each]
        for pid in {*pids} - self._seen:
            with suppress(OSError):  # it has ended
                Path(f"/proc/{pid}/oom_score_adj").write_text(_KILLED_FIRST)
        self._seen.update(pids)
        for keeper, each in below.items():
            now_s = _cpu_s(keeper, 13, 14) + sum(_cpu_s(pid, 11, 12, 13, 14) for pid in each)
            # It is less while one that has ended is not waited for.
            self._used_s[keeper] = max(self._used_s.get(keeper, 0.0), now_s)
        self.processes = max(self.processes, len(pids))
        self.memory_bytes = max(self.memory_bytes, sum(map(pss_bytes, pids)))


def _cpu_s(pid: int, *fields: int) -> float:
    """Return CPU time from a process's stat: fields 11 and 12 are its own, 13 and 14 that of ended children."""
    found = stat_of(pid)
    return CLOCK_TICK_S * sum(int(found[field]) for field in fields) if found else 0.0


class MeasuredTrial:
    """A trial that is ended once enough is known of its loops, or a bound is passed.

    The first batches of each do not count, nor, where it ``drains``, what a feed had ready.
    """

    def __init__(self, runner: TrialRunner, bounds: Bounds, *, warm: int = WARM_BATCHES, drains: bool = False):
        self.runner = runner
        self._bounds = bounds
        self._is_filled = drains
        self._began_s = time.monotonic()
        self._warm_s: dict[int, float] = {}  # when each had had its first batches
        self.warm_batches = warm
        self._runs_to_end = False
        self.over = ""  # why it was ended early; else empty
        self.first_s = 0.0  # seconds until each had its first batch
        self.since_s = 0.0  # when all were warm, in seconds since 1970; 0 if they never were

    def run(self, *, to_end: bool = False) -> list[RunRecord]:
        """Run it, or ``to_end`` each copy until it has finished by itself; return the records of the copies."""
        self._began_s = time.monotonic()
        self._runs_to_end = to_end
        fewest = 1 if to_end else len(self.runner.records)
        return self.runner.run(self._is_over, fewest=fewest)

    def _is_over(self) -> bool:
        most_bytes = self._bounds.memory_bytes
        if most_bytes is not None and self.runner.memory_bytes > most_bytes:
            self.over = MUCH
        elif not self.over:
            self._warm_up(time.monotonic())
        if self.over:
            self.runner.why_ended = self.over
            return True
        if self._runs_to_end:
            return self.runner.has_failed()
        if len(self._warm_s) < len(self.runner.records):
            return False
        since_s, batches = time.monotonic() - max(self._warm_s.values()), self.runner.batches()
        if self._is_filled:
            if since_s >= _DRAINED_S:
                self._is_filled, self.warm_batches = False, int(max(batches))
                self._warm_s.clear()
            return False
        enough = min(batches) >= self.warm_batches + self._bounds.batches
        return since_s >= self._bounds.most_s or (enough and since_s >= self._bounds.least_s)

    def _warm_up(self, now_s: float) -> None:
        if len(self._warm_s) == len(self.runner.records):
            return
        batches, is_late = self.runner.batches(), now_s - self._began_s > self._bounds.first_s
        for place, count in enumerate(batches):
            if count >= self.warm_batches or (count and is_late):
                self._warm_s.setdefault(place, now_s)
        if all(batches):
            self.first_s = self.first_s or now_s - self._began_s
        elif is_late:
            self.over = f"no first batch within {self._bounds.first_s:g} s{self._bounds.longer}"
        if len(self._warm_s) == len(batches):
            self.since_s = time.time()
            self.runner.begin_to_count()


def batches_of(series: Mapping[str, Series]) -> float:
    """Return how many batches a run's training was given, as far as its series tell."""
    batches = series.get(f"{training(series)}batches")
    return (batches.last or 0.0) if batches else 0.0
