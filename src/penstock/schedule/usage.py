"""What a run has used up to a moment, and what a sample costs it between two of them."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from penstock.feed.queries import FeedUsage, read_by
from penstock.feed.statistics import FeederStatistics
from penstock.linux.process import CLOCK_TICK_S, PAGE_BYTES, descendants, stat_of
from penstock.runs.figures import LOOPS, training
from penstock.runs.glance import Recent
from penstock.runs.keeper.keeper import FEEDER
from penstock.runs.record import RunRecord
from penstock.runs.store import Series, Store
from penstock.runs.store.merged import read_series
from penstock.schedule.jobs import GpuMachine
from penstock.schedule.partition import Placed, Sharing, rates_together

_LOOP = ("samples", "loop_s", "wait_s")
_MEMORY = ("gpu.memory_bytes", "proc.pss_bytes", "feed.memory_bytes")
_RECENT_S = 2.0
_MOST_AHEAD_S = 1.0
_WORKER = b"pt_data_worker\n"
"""What torch calls the workers of a DataLoader, from 2.6 on."""


class Usage(NamedTuple):
    """What a run has used up to a moment."""

    time_s: float  # the moment, of the monotonic clock
    samples: float  # samples that its training was given (``runs.figures.training``)
    loop_s: float  # time of its loops
    wait_s: float  # time for which they waited for data
    own_cpu_s: float  # CPU time of its processes, feeders left out
    memory_bytes: int | None  # the most so far, on one GPU or of the host; None where nobody knows
    feed: FeedUsage | None  # the feed that it reads, of several the busiest; None for none
    workers_cpu_s: float = 0.0  # the part of ``own_cpu_s`` of DataLoader workers, and of children that have ended
    of: str = "feed."  # as ``training`` says


class SampleCosts(NamedTuple):
    """What a sample took over an interval, in seconds as in ``Profile``; NaN where no sample tells."""

    samples_per_s: float
    preparation_s: float
    own_s: float
    gpu_s: float


class UsageSpan(NamedTuple):
    """What was seen of a run that goes on."""

    first: Usage  # the first look that saw samples
    now: Usage  # the newest look
    costs: SampleCosts  # what a sample took in the last seconds


def usage_of(store: Store, record: RunRecord, feeds: Sequence[FeederStatistics], *, on_gpus: bool) -> Usage:
    """Look at a run that has begun, and goes on.

    What its script counted half a second ago is carried on to this moment, at the rate of that time. ``feeds`` are
    all, as ``feeds()`` lists them. With ``on_gpus``, the memory that counts is that of GPUs.
    """
    pids = descendants(record.keeper[0], without=FEEDER) if record.keeper else []
    main_s, workers_s, rss_bytes = _used(pids)
    time_s, now_s = time.monotonic(), time.time()
    (samples, loop_s, wait_s), of, most = _series_reader(store.folder_of(record.id)).read(now_s)
    gpu_bytes = most["gpu.memory_bytes"] / (record.plan.gpus or 1)
    own_bytes = most["proc.pss_bytes"] or rss_bytes
    taken = int(gpu_bytes if on_gpus else own_bytes + (most["feed.memory_bytes"] if own_bytes else 0)) or None
    feed = read_by(pids, feeds)
    return Usage(time_s, samples, loop_s, wait_s, main_s + workers_s, taken, feed, workers_s, of)


def costs(before: Usage, after: Usage) -> SampleCosts:
    """Return what a sample cost between two looks at a run.

    Without a feed and without workers, the time that the run waited is taken for that of preparation. If one look
    saw no feed, or another feeder, preparation is not known.
    """
    samples = after.samples - before.samples
    own_s = after.own_cpu_s - before.own_cpu_s
    wait_s = after.wait_s - before.wait_s
    prepared_s, old, new = math.nan, before.feed, after.feed
    if old and new and old.pid == new.pid:
        prepared_s = _per(new.cpu_s - old.cpu_s, new.samples - old.samples)
    elif not old and not new:
        workers_s = after.workers_cpu_s - before.workers_cpu_s or min(wait_s, own_s)
        own_s -= workers_s
        prepared_s = _per(workers_s, samples)
    return SampleCosts(
        samples_per_s=samples / (after.time_s - before.time_s),
        preparation_s=prepared_s,
        own_s=_per(own_s, samples),
        gpu_s=_per(after.loop_s - before.loop_s - wait_s, samples),
    )


def _used(pids: Iterable[int]) -> tuple[float, float, int]:
    """Return CPU time of processes; that of DataLoader workers and of children that have ended; RSS in bytes."""
    main_ticks = workers_ticks = rss_pages = 0
    for pid in pids:
        if fields := stat_of(pid):
            user, system, *ended = map(int, fields[11:15])
            is_worker = _is_worker(pid)
            main_ticks += (user + system) * (not is_worker)
            workers_ticks += (user + system) * is_worker + sum(ended)
            rss_pages += int(fields[21])
    return main_ticks * CLOCK_TICK_S, workers_ticks * CLOCK_TICK_S, rss_pages * PAGE_BYTES


def _is_worker(pid: int) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/comm", "rb") as file:
        return file.read() == _WORKER
    return False


def _per(used_s: float, samples: float) -> float:
    return max(0.0, used_s / samples) if samples > 0 else math.nan


class _SeriesReader:
    """What earlier looks at a run have read of its series: each look reads only what has been added."""

    def __init__(self, run_folder: Path) -> None:
        before = read_series(run_folder / "series", _MEMORY.__contains__)
        self._most = {name: float(before[name].values.max()) if name in before else 0.0 for name in _MEMORY}
        self._recent = Recent(run_folder, _RECENT_S)

    def read(self, now_s: float) -> tuple[list[float], str, dict[str, float]]:
        """Return samples, loop time and wait at a time in seconds since 1970, of what, and the most memory."""
        found = self._recent.look(lambda name: name in (*LOOPS, *_MEMORY))
        for name in found.keys() & self._most.keys():
            self._most[name] = max(self._most[name], float(found[name].values.max()))
        of = training(found)
        return [_at(found.get(f"{of}{name}"), now_s) for name in _LOOP], of, self._most


_series_reader = lru_cache(maxsize=1024)(_SeriesReader)


def _at(series: Series | None, now_s: float) -> float:
    """Return a counter at this moment, a little behind its newest point."""
    if series is None or series.last is None:
        return 0.0
    ahead_s = min(max(0.0, now_s - float(series.times_s[-1])), _MOST_AHEAD_S)
    return series.last + ahead_s * (series.rise_per_s(0.0) or 0.0)


SETTLED_S = 10.0
"""Seconds of training beside the same others, after which figures of a run are believed."""
WINDOW_S = 58.0
"""Seconds for which two must have been slower together."""
_KEPT_S = 60.0
_OFF = 0.15
"""A rate that differs by more than this part from the model's changes the plan."""
_SLOWER = 0.95
"""Pairs that reach less than this part of their sequential progress are not placed together again."""


class UsageWindow:
    """The looks at one run that goes on."""

    def __init__(self) -> None:
        self.first: Usage | None = None  # the first look that saw samples
        self.newest: Usage | None = None  # the newest look
        self.expected: float | None = None  # samples a second that the model expects; None before it trains
        self._looks: deque[Usage] = deque()
        self._all: deque[Usage] = deque(maxlen=round(_KEPT_S))  # whoever was beside it

    def add(self, look: Usage) -> None:
        """Take a look; it tells nothing of training if no sample has come since the last."""
        self.newest = look
        if self._all and look.of != self._all[-1].of:
            self.first = None
            self._looks.clear()
            self._all.clear()
        if look.samples <= (self._all[-1].samples if self._all else 0.0):
            return
        if self.first is None:
            self.first = look
        self._looks.append(look)
        self._all.append(look)
        while look.time_s - self._looks[0].time_s > _KEPT_S:
            self._looks.popleft()

    def begin_anew(self) -> None:
        """Forget the looks: others have come or gone."""
        while len(self._looks) > 1:
            self._looks.popleft()

    def seen(self, least_s: float = SETTLED_S) -> UsageSpan | None:
        """Return what was seen of it beside the same others; None if that is too little."""
        return self._seen(self._looks, least_s)

    def in_all(self) -> UsageSpan | None:
        """Return what was seen of one that has ended, whoever was beside it: where a feed was read, of that."""
        fed = [look for look in self._all if look.feed]
        of_feed = [look for look in fed if look.feed and fed[-1].feed and look.feed.pid == fed[-1].feed.pid]
        return self._seen(of_feed or self._all, 1.0)

    def _seen(self, looks: Sequence[Usage], least_s: float) -> UsageSpan | None:
        if self.first is None or len(looks) < 2 or looks[-1].time_s - looks[0].time_s < least_s:
            return None
        return UsageSpan(self.first, looks[-1], costs(looks[0], looks[-1]))

    def is_off(self) -> bool:
        """Whether its rate is not the model's."""
        seen = self.seen()
        return bool(seen and self.expected and abs(seen.costs.samples_per_s / self.expected - 1) > _OFF)


def slower_together(
    watched: Mapping[str, UsageWindow],  # the looks at runs, by name
    placed: Sequence[Placed],  # the runs that train
    left: Mapping[str, float],  # samples that each has yet to train on
    machine: GpuMachine,
    sharing: Sharing,  # how feeds are shared
) -> list[tuple[str, str]]:
    """Name pairs on one GPU that would be faster one after the other, everything else being as it is."""
    found = list[tuple[str, str]]()
    for number, one in enumerate(placed):
        for other in placed[number + 1 :]:
            if {*one.gpus}.isdisjoint(other.gpus):
                continue
            progress = 0.0
            for run, partner in ((one, other), (other, one)):
                seen = watched[run.job.name].seen(WINDOW_S)
                rest = [each for each in placed if each is not partner]
                rates, _, _ = rates_together(rest, [left[each.job.name] for each in rest], 0, machine, sharing)
                alone = rates[rest.index(run)]
                progress += seen.costs.samples_per_s / alone if seen and alone > 0 else 1.0
            if progress < _SLOWER:
                found.append((one.job.name, other.job.name))
    return found
