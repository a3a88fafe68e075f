"""Where the time of this process's loops over loaders goes: an ``Iteration`` for each, and their sums.

Nothing takes a lock: a signal handler or a forked child may iterate, too. Each figure is written by the thread
that iterates, in one assignment, and read by whoever stores the series of a run.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple, TypeVar, cast

from penstock.linux.when_gone import when_gone

_MOST_APART = 1000


class Point(NamedTuple):
    """Values of one moment, in seconds since 1970, by the names of their series."""

    time_s: float
    values: dict[str, float]


class _Figures:
    """What is known of one iteration; it may be read when the iteration is gone.

    Attributes:
        began_s, until_s: Its time, as far as it is known to be that of a loop.
        gone_s: When its iterator was let go.
        waits: Seconds of those that are over, and when one that goes on began.
        samples: Rows handed over; NaN if nobody knows.
    """

    def __init__(self, began_s: float) -> None:
        self.began_s = self.until_s = began_s
        self.gone_s: float | None = None
        self.waits: tuple[float, float | None] = 0.0, None
        self.batches = 0
        self.samples = 0.0
        self.is_over = False


class _Loader:
    """What is known of a loader: the batches of all its iterations."""

    batches = 0


class _Totals:
    """The sums of all iterations of this process."""

    def __init__(self) -> None:
        self._loaders: dict[int, _Loader] = {}  # by identity: one may equal another, or have no hash
        self.most = 0  # batches of one loader
        self.begun: deque[_Figures] = deque()
        self.epochs: deque[Point] = deque()
        self._going_on: list[_Figures] = []
        self._past = 0.0, 0, 0.0  # waits, batches and samples of iterations that are over
        self._covered: list[tuple[float, float]] = []  # the time of loops; loops within loops count once
        self._past_covered_s = 0.0

    def loader(self, loader: object) -> _Loader:
        key, loaders = id(loader), self._loaders
        if key not in loaders:
            when_gone(loader, map(loaders.pop, (key,), (None,)))
        return loaders.setdefault(key, _Loader())

    def points(self) -> list[Point]:
        points: list[Point] = []
        while self.epochs:
            points.append(self.epochs.popleft())
        while self.begun:
            self._going_on.append(self.begun.popleft())
        if not self._going_on and not self._covered:
            return points
        read, self._going_on = self._going_on, []
        waited_s, batches, samples = self._past
        now_s = monotonic()
        for each in read:
            gone_s = None if each.is_over else each.gone_s
            is_over = each.is_over or gone_s is not None  # first: then what follows is final
            over_s, since_s = each.waits
            waited_s, batches, samples = waited_s + over_s, batches + each.batches, samples + each.samples
            if is_over:
                past_s, past_batches, past_samples = self._past
                self._past = past_s + over_s, past_batches + each.batches, past_samples + each.samples
            else:
                waited_s += now_s - (since_s or now_s)
                self._going_on.append(each)
            self._cover(each.began_s, now_s if since_s else gone_s or each.until_s)
        self._forget_oldest(min((each.began_s for each in self._going_on), default=now_s))
        loop_s = self._past_covered_s + sum(end_s - began_s for began_s, end_s in self._covered)
        values = {"feed.wait_s": min(waited_s, loop_s), "feed.loop_s": loop_s, "feed.batches": float(batches)}
        known = {} if math.isnan(samples) else {"feed.samples": samples}
        return [*points, Point(time.time(), values | known)]

    def _cover(self, began_s: float, end_s: float) -> None:
        apart: list[tuple[float, float]] = []
        for other in self._covered:
            if other[1] < began_s or other[0] > end_s:
                apart.append(other)
            else:
                began_s, end_s = min(began_s, other[0]), max(end_s, other[1])
        self._covered = [*apart, (began_s, end_s)]

    def _forget_oldest(self, before_s: float) -> None:
        """Reduce the oldest intervals to their sum, where no iteration can cover any of their time again."""
        self._covered.sort()
        count = 0
        while len(self._covered) - count > _MOST_APART and self._covered[count][1] < before_s:
            self._past_covered_s += self._covered[count][1] - self._covered[count][0]
            count += 1
        del self._covered[:count]


class _Asking(threading.local):
    """The iteration that this thread waits for: what another is asked meanwhile is part of that wait."""

    iteration: Iteration | None = None


_asking = _Asking()
_totals = _Totals()
_begins: Callable[[], object] | None = None
on_batch: Callable[[float], object] | None = None
"""Called for each batch that a thread was given, with its samples; NaN if nobody knows how many."""

PHASES = "PENSTOCK_PHASES"
"""Set in a run that is started only to be measured, in phases (``penstock schedule profile``)."""
instead: Callable[[Callable[[Any], Any], Any], Any] | None = None
"""Called in place of a loop's ``__next__`` in such a run, with that and the loop."""
_Step = TypeVar("_Step", bound=Callable[[Any], Any])


def in_phases(step: _Step) -> _Step:
    """Have a loop's ``__next__`` ask ``instead``; in a run that is not measured in phases, it stays as it is."""
    if PHASES not in os.environ:
        return step

    def __next__(loop: Any) -> Any:  # noqa: N807
        return step(loop) if instead is None else instead(step, loop)

    return cast("_Step", __next__)


class Iteration:
    """One loop over a loader, from where its iterator is asked for until it is exhausted or gone.

    It belongs to the iterator. What happens between two batches is the loop's once the second is asked for, or
    the iterator is let go: one that is held and not used is no loop.

    Args:
        loader: What is iterated.
        asked_s: When its iterator was asked for, in seconds of the monotonic clock; now, if None.
    """

    def __init__(self, loader: object, asked_s: float | None = None) -> None:
        self._figures = figures = _Figures(monotonic() if asked_s is None else asked_s)
        when_gone(self, map(setattr, (figures,), ("gone_s",), iter(monotonic, None)))
        self._totals = _totals
        self._loader: _Loader | None = None  # None: this iteration does not count
        with suppress(Exception):  # a loop goes on, whatever hinders its figures
            if _asking.iteration is None and _begins is not None and _begins() is not None:
                self._loader = self._totals.loader(loader)
                self._totals.begun.append(self._figures)

    def ask(self, since_s: float | None = None) -> None:
        """Begin to wait, for a batch or for the iterator itself. End it by ``give``, ``pause`` or ``end``."""
        if _asking.iteration is None or _asking.iteration is self:
            _asking.iteration = self
            self._figures.waits = self._figures.waits[0], monotonic() if since_s is None else since_s

    def pause(self) -> bool:
        """End the wait, with or without a batch; return whether there was one."""
        figures = self._figures
        over_s, since_s = figures.waits
        if since_s is None or _asking.iteration is not self:
            return False
        figures.until_s = now_s = monotonic()
        figures.waits = over_s + now_s - since_s, None
        _asking.iteration = None
        return True

    def give(self, samples: float) -> None:
        """End the wait with a batch of this many samples; NaN if nobody knows how many."""
        figures, loader = self._figures, self._loader
        if self.pause() and loader is not None:
            figures.batches += 1
            figures.samples += samples
            loader.batches += 1
            if loader.batches > self._totals.most:  # noqa: PLR1730 - max() takes longer
                self._totals.most = loader.batches
            if on_batch is not None:
                on_batch(samples)

    def end(self) -> None:
        """End the wait and the loop: the iterator is exhausted."""
        figures, loader = self._figures, self._loader
        if self.pause() and not figures.is_over:
            if loader and figures.batches and loader.batches == self._totals.most and _is_first_rank():
                took_s = figures.until_s - figures.began_s
                self._totals.epochs.append(Point(time.time(), {"feed.epoch_s": took_s}))
            figures.is_over = True

    def break_off(self) -> None:
        """End the loop where its last batch came: its iterator is used for another."""
        self._figures.is_over = True


def report(begins: Callable[[], object]) -> None:
    """Sum up iterations from now on. Each calls ``begins`` first, and does not count if that returns None."""
    global _begins  # noqa: PLW0603 - it belongs to the process
    _begins = begins


def points() -> list[Point]:
    """Return the epochs that have ended since the last call, and the present totals; nothing before any loop.

    Not to be called by two threads at once.
    """
    return _totals.points()


def _is_first_rank() -> bool:
    distributed: Any = sys.modules.get("torch.distributed")  # which may be a part only of what it can be
    is_initialized = getattr(distributed, "is_initialized", None)
    with suppress(Exception):
        return not (is_initialized and is_initialized()) or distributed.get_rank() == 0
    return False


def _begin_anew() -> None:
    """In a forked child: what its parent did is the parent's."""
    global _totals  # noqa: PLW0603
    _totals = _Totals()
    _asking.iteration = None


os.register_at_fork(after_in_child=_begin_anew)
