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
    """What is known of one iteration; it may be read when the iteration is gone."""

    def __init__(self, began_s: float) -> None:
        self.began_s = self.until_s = self.first_s = began_s  # of a loop, as far as it is known; its first batch
        self.gone_s: float | None = None  # when its iterator was let go
        self.waits: tuple[float, float | None] = 0.0, None  # seconds that are over, and since when one goes on
        self.batches = 0
        self.samples = 0.0  # rows handed over; NaN if nobody knows
        self.loader = _Loader()
        self.trains = False  # whether an optimizer stepped in it
        self.ended: tuple[float, float] | None = (
            None  # when, in seconds since 1970, and after how long: it was complete
        )
        self.amid: list[_Figures] = []  # whose batches wait for one of it when it ends
        self.is_over = False

    def goes_on(self) -> bool:
        return not self.is_over and self.gone_s is None


class _Loader:
    """What is known of a loader: how long its first complete loop was."""

    length: tuple[int, str] | None = None


class _Seen(NamedTuple):
    """An iteration at one moment."""

    figures: _Figures
    is_over: bool
    trains: bool
    until_s: float
    waited_s: float
    batches: int
    samples: float

    @classmethod
    def at(cls, now_s: float, each: _Figures) -> _Seen:
        gone_s = None if each.is_over else each.gone_s
        is_over = each.is_over or gone_s is not None  # first: then what follows is final
        over_s, since_s = each.waits
        waited_s = over_s if is_over else over_s + now_s - (since_s or now_s)
        until_s = now_s if since_s else gone_s or each.until_s
        return cls(each, is_over, each.trains, until_s, waited_s, each.batches, each.samples)


class _Sums:
    """The sums of some iterations."""

    def __init__(self) -> None:
        self._past = 0.0, 0, 0.0  # waits, batches and samples of iterations that are over
        self.covered: list[tuple[float, float]] = []  # the time of loops; loops within loops count once
        self._past_covered_s = 0.0

    def values(self, begin: str, read: list[_Seen], before_s: float) -> dict[str, float]:
        """Add iterations, and return the sums, in series whose names begin so."""
        waited_s, batches, samples = self._past
        for each in read:
            waited_s, batches, samples = waited_s + each.waited_s, batches + each.batches, samples + each.samples
            if each.is_over:
                past_s, past_batches, past_samples = self._past
                self._past = past_s + each.waited_s, past_batches + each.batches, past_samples + each.samples
            self._cover(each.figures.began_s, each.until_s)
        self._forget_oldest(before_s)
        loop_s = self._past_covered_s + sum(end_s - began_s for began_s, end_s in self.covered)
        values = {"wait_s": min(waited_s, loop_s), "loop_s": loop_s, "batches": float(batches)}
        known = {} if math.isnan(samples) else {"samples": samples}
        return {f"{begin}{name}": value for name, value in (values | known).items()}

    def _cover(self, began_s: float, end_s: float) -> None:
        apart: list[tuple[float, float]] = []
        for other in self.covered:
            if other[1] < began_s or other[0] > end_s:
                apart.append(other)
            else:
                began_s, end_s = min(began_s, other[0]), max(end_s, other[1])
        self.covered = [*apart, (began_s, end_s)]

    def _forget_oldest(self, before_s: float) -> None:
        """Reduce the oldest intervals to their sum, where no iteration can cover any of their time again."""
        self.covered.sort()
        count = 0
        while len(self.covered) - count > _MOST_APART and self.covered[count][1] < before_s:
            self._past_covered_s += self.covered[count][1] - self.covered[count][0]
            count += 1
        del self.covered[:count]


class _Alike:
    """The sums of loaders whose first complete loops were of one length: the same loader, made anew each epoch."""

    def __init__(self) -> None:
        self.loop_s, self.batches, self.samples = 0.0, 0, 0.0
        self.ended: deque[tuple[float, float]] = deque(maxlen=10_000)

    def points(self) -> list[Point]:
        known = {} if math.isnan(self.samples) else {"feed.main.samples": self.samples}
        epochs = [Point(time_s, {"feed.main.epoch_s": took_s}) for time_s, took_s in self.ended]
        return [*epochs, Point(time.time(), {"feed.main.batches": float(self.batches), **known})]


class _Totals:
    """The sums of all iterations of this process."""

    def __init__(self) -> None:
        self._loaders: dict[int, _Loader] = {}  # by identity: one may equal another, or have no hash
        self.begun: deque[_Figures] = deque()
        self.given: list[_Figures] = []  # as in ``_Asking``, of the thread that got a batch of another loop last
        self.has_stepped = self._has_trained = self._is_told = False
        self._going_on: list[_Figures] = []
        self._all, self._training = _Sums(), _Sums()
        self._ended: list[_Figures] = []  # complete loops that train, and may be a part of another
        self._alike: dict[tuple[int, str] | None, _Alike] = {}  # of loaders by their lengths, while nothing trains

    def loader(self, loader: object) -> _Loader:
        key, loaders = id(loader), self._loaders
        if key not in loaders:
            when_gone(loader, map(loaders.pop, (key,), (None,)))
        return loaders.setdefault(key, _Loader())

    def points(self, *, is_last: bool) -> list[Point]:
        while self.begun:
            self._going_on.append(self.begun.popleft())
        if not self._going_on and not self._all.covered:
            return []
        now_s = monotonic()
        read = [_Seen.at(now_s, each) for each in self._going_on]
        self._going_on = [each.figures for each in read if not each.is_over]
        before_s = min((each.began_s for each in self._going_on), default=now_s)
        values = self._all.values("feed.", read, before_s)
        training = [each for each in read if each.trains]
        self._has_trained = self._has_trained or bool(training)
        if self._has_trained or (not is_last and self._is_to_train()):
            values |= self._training.values("feed.train.", training, before_s)
        points = [*self._epochs(training, is_last=is_last), Point(time.time(), values)]
        if not self._has_trained and not self._is_told:
            for each in read:
                if is_last or each.is_over:
                    self._add_alike(each)
            if is_last and self._alike:
                points += max(self._alike.values(), key=lambda each: each.loop_s).points()
        self._is_told = self._is_told or is_last
        return points

    def _epochs(self, training: list[_Seen], *, is_last: bool) -> list[Point]:
        """Return the complete loops that were no part of a longer one: several loaders in one loop end it once."""
        ended = self._ended + [each.figures for each in training if each.is_over and each.figures.ended]
        points, self._ended = list[Point](), []
        for loop in ended:
            others = [each for each in training if each.figures is not loop]
            around = [each for each in others if each.figures.began_s <= loop.first_s or each.figures in loop.amid]
            if any(each.figures.ended and each.figures.until_s > loop.until_s for each in around):
                continue
            if is_last or all(each.is_over for each in around):
                assert loop.ended
                points.append(Point(loop.ended[0], {"feed.epoch_s": loop.ended[1]}))
            else:
                self._ended.append(loop)
        return points

    def _is_to_train(self) -> bool:
        """Whether an optimizer was made, and none has stepped."""
        return not self.has_stepped and _is_made(getattr(sys.modules.get(_OPTIMIZERS), "Optimizer", None))

    def _add_alike(self, seen: _Seen) -> None:
        loader, ended = seen.figures.loader, seen.figures.ended
        alike = self._alike.setdefault(loader.length, _Alike())
        alike.loop_s += seen.until_s - seen.figures.began_s
        alike.batches, alike.samples = alike.batches + seen.batches, alike.samples + seen.samples
        alike.ended.extend([ended] if ended else ())


def _is_made(kind: type | None) -> bool:
    """Whether there was an optimizer of a class: the first one makes it call hooks."""
    return kind is not None and (
        hasattr(vars(kind).get("step"), "hooked") or any(map(_is_made, kind.__subclasses__()))
    )


class _Asking(threading.local):
    """What this thread does."""

    def __init__(self) -> None:
        self.iteration: Iteration | None = None  # waited for: what another is asked meanwhile is part of that wait
        self.given: list[_Figures] = []  # gave batches since an optimizer stepped, the last of them last


_asking = _Asking()
_totals = _Totals()
_OPTIMIZERS = "torch.optim.optimizer"
_hears_steps = False
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

    It belongs to the iterator. What happens between two batches is the loop's once the second is asked for, or the
    iterator is let go: one that is held and not used is no loop. The iterator was asked for at ``asked_s`` of the
    monotonic clock; now, if None.
    """

    def __init__(self, loader: object, asked_s: float | None = None) -> None:
        self._figures = figures = _Figures(monotonic() if asked_s is None else asked_s)
        when_gone(self, map(setattr, (figures,), ("gone_s",), iter(monotonic, None)))
        self._totals = _totals
        self._counts = False
        with suppress(Exception):  # a loop goes on, whatever hinders its figures
            if _asking.iteration is None and _begins is not None and _begins() is not None:
                figures.loader = self._totals.loader(loader)
                self._totals.begun.append(figures)
                self._counts = True

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
        figures, given = self._figures, _asking.given
        if self.pause() and self._counts:
            if not figures.batches:
                figures.first_s = figures.until_s
            figures.batches += 1
            figures.samples += samples
            if not given or given[-1] is not figures:
                given[:] = [each for each in given if each is not figures and each.goes_on()]
                given.append(figures)
                self._totals.given = given
            if not _hears_steps:
                _hear_steps()
            if on_batch is not None:
                on_batch(samples)

    def end(self) -> None:
        """End the wait and the loop: the iterator is exhausted."""
        figures = self._figures
        if self.pause() and not figures.is_over:
            if self._counts and figures.batches:
                loader = figures.loader
                loader.length = loader.length or (figures.batches, str(figures.samples))
                if _is_first_rank():
                    figures.ended = time.time(), figures.until_s - figures.began_s
                    figures.amid = [] if figures in _asking.given else [*_asking.given]
            figures.is_over = True

    def break_off(self) -> None:
        """End the loop where its last batch came: its iterator is used for another."""
        self._figures.is_over = True


def report(begins: Callable[[], object]) -> None:
    """Sum up iterations from now on. Each calls ``begins`` first, and does not count if that returns None."""
    global _begins  # noqa: PLW0603 - it belongs to the process
    _begins = begins


def points(*, is_last: bool = False) -> list[Point]:
    """Return the epochs that have ended since the last call, and the present totals; nothing before any loop.

    Not to be called by two threads at once. With ``is_last``, the process ends: where no optimizer stepped in a
    loop, the loader with most loop time trains.
    """
    return _totals.points(is_last=is_last)


def _hear_steps() -> None:
    """Have torch say when an optimizer steps, if the script has imported it."""
    global _hears_steps  # noqa: PLW0603 - it belongs to the process
    register = getattr(sys.modules.get(_OPTIMIZERS), "register_optimizer_step_post_hook", None)
    if register:
        _hears_steps = True
        register(_stepped)


def _stepped(*_: object) -> None:
    """Note that the innermost loop trains, and those that take turns with it, as in a zip."""
    _totals.has_stepped = True
    for given in (_asking.given, _totals.given):  # a thread may read ahead for the one that steps
        if going_on := [each for each in given if each.goes_on()]:
            for each in going_on:  # within a loop, another begins after its last batch
                each.trains = each.trains or all(other.began_s <= each.until_s for other in going_on)
            given.clear()
            return


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
    _asking.__init__()


os.register_at_fork(after_in_child=_begin_anew)
