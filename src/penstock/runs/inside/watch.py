"""Hooks a program's DataLoaders: records how long it waits for them, without changing what they give."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from time import monotonic
from typing import Any, cast

from penstock.autosharing.options import share_all
from penstock.inject import SHARE, hook
from penstock.linux.fork import importing
from penstock.waits import Iteration, in_phases


def watch(loader: Any, make: Callable[[], Any]) -> Any:
    """Make a loader's iterator, and count how long it is waited for.

    The iterator gets a class of its own, a child of the one it had: special methods are looked up there, and a
    proxy would lack what frameworks ask an iterator for.
    """
    asked_s = monotonic()
    try:
        with importing:
            from penstock.runs.inside.run import watch_waits

            watch_waits()
    except Exception:
        return make()
    iteration = Iteration(loader, asked_s)
    try:
        iteration.ask(asked_s)
        iterator = make()
    finally:
        iteration.pause()
    with suppress(Exception):  # an iterator of a class that cannot have such a child
        iterator._penstock = iteration, rows_of(loader)
        iterator.__class__ = _watched(cast(Any, type(iterator)))
    return iterator


@cache
def _watched(kind: Any) -> Any:
    def __next__(self: Any) -> Any:  # noqa: N807
        iteration, rows = self._penstock
        try:
            iteration.ask()
            batch = kind.__next__(self)
        except StopIteration:
            iteration.end()
            raise
        except BaseException:
            iteration.pause()
            raise
        iteration.give(rows(batch))
        return batch

    def _reset(self: Any, loader: Any, *rest: Any, **named: Any) -> None:
        self._penstock[0].break_off()
        iteration = Iteration(loader)
        self._penstock = iteration, rows_of(loader)
        try:
            iteration.ask()
            kind._reset(self, loader, *rest, **named)
        finally:
            iteration.pause()

    methods = {
        "__next__": in_phases(__next__),
        "_reset": _reset,
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
    }
    return type(kind.__name__, (kind,), methods)


def rows_of(loader: Any) -> Callable[[Any], float]:
    """Return what counts the rows of a loader's batches, as they come; NaN where nobody knows."""
    try:
        size = int(loader.batch_size or 0)
        if not size and loader.batch_sampler is None:
            return lambda batch: math.nan
        if size and loader.drop_last:
            return lambda batch: size
        total = len(loader.sampler) if size else 0
    except Exception:  # whatever the program's own loader or sampler raises, as iterating it would not
        return first_axis
    if not total:
        return first_axis
    left = total

    def rows(batch: Any) -> float:
        nonlocal left
        given = min(size, left)
        left = left - given or total  # a batch sampler may repeat the sampler without end
        return given

    return rows


def first_axis(batch: Any) -> float:
    """Return the length of the first axis of a batch, or of the first array in it; NaN if there is none.

    A list of dicts is taken for a list of samples. What lies deeper is not looked at: the first array in a tuple
    of images is one sample.
    """
    try:
        first = batch
        if isinstance(batch, (list, tuple)):
            first = cast("list[Any]", batch)[0]
            if isinstance(first, Mapping):
                return float(len(cast("list[Any]", batch)))
        elif isinstance(batch, Mapping):
            first = next(iter(cast("Mapping[Any, Any]", batch).values()))
        return math.nan if isinstance(first, (list, tuple, Mapping)) else float(first.shape[0])
    except Exception:  # no array, one of no axes, or whatever a batch of the program's own raises
        return math.nan


def watch_loaders() -> None:
    """Record the waits of this process's loops: for Penstock's loaders, and for whatever loaders are hooked."""
    from penstock.runs.inside.run import watch_waits

    watch_waits()
    if watch not in hook.GUARDS:
        hook.GUARDS.append(watch)


def hooked(loader_class: type) -> None:
    """Watch, and share if ``penstock run --share`` asks for it, all loaders of a class."""
    if watch not in hook.GUARDS:
        hook.GUARDS.append(watch)
    if SHARE in os.environ:
        share_all()
    hook.hook(loader_class)
