"""What is done when nothing refers to an object any more, so that no exception breaks it off, and none is lost.

Python only reports what is raised in the callback of a weak reference, in ``weakref.finalize`` or in ``__del__``:
Ctrl-C there, or whatever else a handler of signals raises, is lost, and the callback broken off.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, count, islice
from threading import get_ident
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in_thread.argtypes = (ctypes.c_ulong, ctypes.py_object)
_exhaust = deque[Any](maxlen=0).extend
_watches: dict[int, weakref.ref[Any]] = {}
_numbers = count()


def when_gone(thing: object, *steps: Iterable[object], among: dict[int, weakref.ref[Any]] = _watches) -> None:
    """Go through these iterators once nothing refers to ``thing``; it may be in any thread, amid any statement.

    Iterators of C's (``map`` of a built-in function) run whole: no signal's handler is called between their steps.
    Others come from ``in_python``. The weak reference stays in ``among`` until then.
    """
    number = next(_numbers)
    # With a default, next() is a callback: it calls pop(number, None), where None is what _exhaust returns.
    ending = map(among.pop, (number,), map(_exhaust, (chain(*steps),)))
    among[number] = weakref.ref(thing, partial(next, ending))


def in_python(call: Callable[[], object]) -> Iterator[object]:
    """Return a step that makes this call. It is made twice if an exception breaks it off.

    That exception is raised where the thread goes on.
    """
    calling = _calling(call)
    next(calling)
    return islice(map(_raise_in_thread, iter(get_ident, None), calling), 1)


class Living(Generic[T]):
    """The things added that something else still refers to.

    As ``weakref.WeakSet``, whose callbacks are Python's and lose Ctrl-C. Things are compared by identity.
    """

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[Any]] = {}

    def __iter__(self) -> Iterator[T]:
        return (thing for each in list(self._references.values()) if (thing := each()) is not None)

    def add(self, thing: T) -> None:
        if all(each is not thing for each in self):
            when_gone(thing, among=self._references)

    def discard(self, thing: T) -> None:
        for number, reference in list(self._references.items()):
            if reference() is thing:
                self._references.pop(number, None)


def _calling(call: Callable[[], object]) -> Generator[Any]:
    try:
        yield
        call()
    except GeneratorExit:
        return
    except BaseException as error:
        with suppress(BaseException):
            call()
        yield _class_of_only(error)


def _class_of_only(error: BaseException) -> Any:
    """Return a class whose only instance is this error: Python makes one of what it raises in a thread."""
    only = [error]  # not to be held by the class, which goes only when Python looks for cycles

    def new(_: type, same: Any = None) -> BaseException:
        return only.pop() if only else same

    return type(type(error).__name__, (type(error),), {"__new__": new})
