"""Measures a run that was started only for that: as it is, then its loader alone, then one batch again and again.

It happens in the run's own process, in place of a loop's ``__next__`` (``waits.in_phases``). ``PENSTOCK_PHASES``
names the moment of the monotonic clock by which all is to be over, and a file that gets a line of JSON for each
stretch. Only the process that gets the first batch is measured, and of torch's loops only those with gradients on.
"""

from __future__ import annotations

import copy
import os
import resource
import sys
import threading
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from time import monotonic, process_time
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from penstock import waits
from penstock.inject import FEEDER
from penstock.linux.process import cpu_s, descendants
from penstock.runs.keeper.keeper import FEEDER as FEEDERS

Phase = Literal["start", "as it is", "loader", "replay", "over"]
_STRETCH_S = _ANSWER_S = 0.5
_SETTLES_S: dict[Phase, float] = {"loader": 2.0, "replay": 1.0}
_PARTS: dict[Phase, float] = {"as it is": 1 / 8, "loader": 1 / 2, "replay": 1 / 2}
"""The parts of the time that is left which phases take at most."""
_FEWEST, _LAST, _APART = 6, 4, 0.03
"""An estimate is good after this many stretches, if the last ones have changed it by no more than this part."""


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """What was used in a stretch of a phase."""

    phase: Phase
    """Until the first batch it is "start". In "loader" it is asked for batches and the script gets none, in
    "replay" the script gets one batch again and again."""
    until_s: float  # its end, of the monotonic clock
    seconds: float = 0.0
    samples: float = 0.0
    """Samples that came from the loader, or were given again; of "start" those of an epoch, if known."""
    own_s: float = 0.0  # CPU time of this process
    children_s: float = 0.0  # CPU time of its children, as a DataLoader's workers; feeders left out
    feed: str = ""  # feed that it reads, if it does
    feeder_s: float = 0.0  # CPU time of that one's feeder and workers
    published: int = 0  # samples that the feed has published
    settles: bool = False  # whether what was loaded ahead before counts in it


class _Used(NamedTuple):
    """What has been used up to a moment; what it takes to look at others lies between its two ends."""

    until_s: float
    own_until_s: float
    children_s: float
    feed: str
    feeder: int
    feeder_s: float
    published: int
    since_s: float
    own_since_s: float


@cache
def begin() -> None:
    """Measure this process from its first batch on, unless another of the run's has had one, or it is a feeder."""
    if FEEDER not in os.environ:
        deadline_s, _, path = os.environ[waits.PHASES].partition(":")
        phases = _Phases(Path(path), float(deadline_s))
        waits.instead, waits.on_batch = phases.next, phases.count
        os.register_at_fork(after_in_child=_leave)


def _leave() -> None:
    waits.instead = waits.on_batch = None


class _Phases:
    """The phases of one process.

    An epoch that ends before there was a replay begins it, as the script may have no other. The loader's turn then
    comes in the epochs after it.
    """

    def __init__(self, path: Path, deadline_s: float) -> None:
        self._path = path
        self._deadline_s = self._until_s = deadline_s
        self._thread = 0
        self._is_inside = self._is_replayed = self._epoch_ends = self._settles = self._has_given = False
        self._phase: Phase = "start"
        self._batch: Any = None
        self._most = self._newest = self._samples = 0.0
        self._since: _Used | None = None  # where the present stretch began
        self._sums = 0.0, 0.0
        self._estimates: list[float] = []

    def count(self, samples: float) -> None:
        """Note the samples of a batch that came from a loader."""
        self._newest = samples

    def next(self, step: Callable[[Any], Any], loop: Any) -> Any:
        """Return what a loop gets in place of ``step(loop)``, its next batch."""
        if self._is_inside or self._thread not in (0, threading.get_ident()):
            return step(loop)
        if not _trains():
            self._pause()
            return step(loop)
        self._is_inside = True
        try:
            batch = self._first(step, loop) if self._phase == "start" else self._next(partial(step, loop))
            self._has_given = True
            return batch
        except StopIteration:
            self._pause()
            if self._most and not self._is_replayed:
                self._epoch_ends = True
                self._enter("replay")
            elif not self._most or self._has_given:
                self._has_given = False
                raise
            self._has_given = True  # a script may divide by an epoch's batches
            return self._given()
        finally:
            self._is_inside = False

    def _first(self, step: Callable[[Any], Any], loop: Any) -> Any:
        batch = step(loop)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        own_s = process_time() + ended.ru_utime + ended.ru_stime
        try:
            self._path.touch(exist_ok=False)
        except FileExistsError:  # another process of this run is measured
            _leave()
            return batch
        self._thread = threading.get_ident()
        self._keep(batch)
        samples = 0.0
        with suppress(TypeError):
            samples = len(loop) * self._newest
        used = _used()
        start = Stretch(phase="start", until_s=used.until_s, own_s=own_s, samples=samples)
        self._write(replace(start, feed=used.feed, feeder_s=used.feeder_s, published=used.published))
        self._enter("as it is")
        return batch

    def _next(self, fetch: Callable[[], Any]) -> Any:
        if self._phase == "as it is":
            batch = self._pulled(fetch)
            if monotonic() < self._until_s:
                return batch
            self._enter("loader")
        if self._phase == "loader":
            while not self._is_found():
                self._pulled(fetch)
            self._enter("over" if self._is_replayed else "replay")
        elif self._phase == "replay":
            self._count(self._most)
            if self._is_found():
                self._is_replayed = True
                self._enter("loader" if self._epoch_ends else "over")
                if self._epoch_ends:
                    raise StopIteration
        return self._given()

    def _pulled(self, fetch: Callable[[], Any]) -> Any:
        self._since = self._since or _used()
        batch = fetch()
        if self._newest >= self._most:  # the last of an epoch may be shorter
            self._keep(batch)
        self._count(self._newest)
        return batch

    def _keep(self, batch: Any) -> None:
        self._batch, self._most = batch, self._newest
        self._is_mutable = isinstance(batch, (MutableMapping, list))

    def _given(self) -> Any:
        if self._phase == "replay":
            self._since = self._since or _used()
        # A script may take a key out of the dict that it gets.
        return copy.copy(self._batch) if self._is_mutable else self._batch

    def _enter(self, phase: Phase) -> None:
        self._pause()
        now_s = monotonic()
        left_s = max(0.0, self._deadline_s - now_s)
        is_last = phase == "loader" if self._is_replayed else phase == "replay" and not self._epoch_ends
        self._phase, self._until_s = phase, now_s + left_s * (1.0 if is_last else _PARTS.get(phase, 0.0))
        self._settles = phase in _SETTLES_S
        self._sums, self._estimates = (0.0, 0.0), []
        if phase == "replay":
            _make_way()
        if phase == "over":
            self._write(Stretch(phase="over", until_s=now_s))

    def _is_found(self) -> bool:
        last = self._estimates[-_LAST:]
        is_good = len(self._estimates) >= _FEWEST and max(last) - min(last) <= _APART * last[-1]
        return is_good or monotonic() >= self._until_s

    def _count(self, samples: float) -> None:
        """Count a batch, and end a stretch that is long enough."""
        assert self._since is not None
        self._samples += samples
        least_s = (
            min(_SETTLES_S[self._phase], self._until_s - self._since.since_s) if self._settles else _STRETCH_S
        )
        if monotonic() - self._since.since_s >= least_s:
            self._since = self._pause()

    def _pause(self) -> _Used | None:
        """End the stretch, if there is one, and return where another may begin."""
        if self._since is None:
            return None
        used, before, samples, self._since, self._samples = _used(), self._since, self._samples, None, 0.0
        if not samples:
            return used
        fed = used.feeder == before.feeder
        stretch = Stretch(
            phase=self._phase,
            until_s=used.until_s,
            seconds=used.until_s - before.since_s,
            samples=samples,
            own_s=used.own_until_s - before.own_since_s,
            children_s=used.children_s - before.children_s,
            feed=used.feed if fed else "",
            feeder_s=used.feeder_s - before.feeder_s if fed else 0.0,
            published=used.published - before.published if fed else 0,
            settles=self._settles,
        )
        self._write(stretch)
        if not self._settles:
            self._estimate(stretch)
        self._settles = False
        return used

    def _estimate(self, stretch: Stretch) -> None:
        """Take a stretch into the estimate of what its phase is to find: of all so far, as batches overlap."""
        cost_s, samples = stretch.seconds, stretch.samples
        if self._phase != "replay":
            cost_s, samples = stretch.own_s + stretch.children_s, stretch.samples
            if stretch.feed:
                cost_s, samples = stretch.feeder_s, stretch.published
        self._sums = self._sums[0] + cost_s, self._sums[1] + samples
        if samples:
            self._estimates.append(self._sums[0] / self._sums[1])

    def _write(self, stretch: Stretch) -> None:
        with self._path.open("ab", 0) as file:
            file.write(msgspec.json.encode(stretch) + b"\n")


def _trains() -> bool:
    torch: Any = sys.modules.get("torch")
    known = getattr(torch, "is_inference_mode_enabled", None)
    return known is None or (torch.is_grad_enabled() and not known())


def _used() -> _Used:
    from penstock.feed.queries import feeds, read_by

    until_s, own_until_s, here = monotonic(), process_time(), os.getpid()
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    children_s = cpu_s(descendants(here, without=FEEDERS)) + ended.ru_utime + ended.ru_stime
    feed, pid, feeder_s, published, _ = read_by([here], feeds(_ANSWER_S)) or ("", 0, 0.0, 0, None)
    return _Used(until_s, own_until_s, children_s, feed, pid, feeder_s, published, monotonic(), process_time())


def _make_way() -> None:
    """Let what loads ahead compute only when nobody else wants to: it is not asked during a replay."""
    feeder = _used().feeder
    for pid in [*descendants(os.getpid()), *([feeder, *descendants(feeder)] if feeder else ())]:
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.setpriority(os.PRIO_PROCESS, int(thread), 19)
