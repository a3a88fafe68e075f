"""What ``share`` hands to the feeder's process: a function to call there, and what it needs of the main script.

The script itself is not run again in the feeder: the functions and classes
that the loader uses travel by value, with the globals that they read, and are
put into the ``__main__`` of the feeder, and of each process that
``multiprocessing`` starts from it, where pickle looks for them by name. So a
worker can be forked, spawned or come from a fork server, and a script needs
no ``if __name__ == "__main__"`` for the feeder's sake.
"""

# cloudpickle has no type stubs.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import functools
import io
import os
import pickle
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from multiprocessing import spawn
from types import FunctionType
from typing import IO, Any, NamedTuple

import cloudpickle
import msgspec

from penstock.errors import BadSetting
from penstock.feed import wire
from penstock.feed.settings import Settings
from penstock.fingerprint.comparison import Fingerprint
from penstock.sources.pickling import SourcePickler

_SPAWNED_MAIN = "__mp_main__"
"""The script's module, in a process that ``multiprocessing`` spawned."""


making: ContextVar[str | None] = ContextVar("making", default=None)
"""In a feeder's process: the feed whose loader it is about to make, empty until it knows; None in all others."""


class FeederSpec(NamedTuple):
    """What a new feeder process gets."""

    make_loader: Callable[[], Any]
    name: str
    settings: Settings
    fingerprint: Fingerprint
    argv: list[str]
    ahead: wire.Prepare | None = None  # from where it prepares, for trainers that are to come from another feed
    replaces: wire.Welcome | None = None  # the feed from which its trainer goes on; None for a new one


class Ready(msgspec.Struct):
    """Report on a new feeder process: it serves (all empty), why it cannot, or how it died before."""

    error: str = ""
    kind: str = ""
    traceback_text: str = ""
    died: str = ""


class _ScriptPickler(SourcePickler):
    """Pickles, and collects the classes and functions of the main script that it meets."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.of_main: dict[str, Any] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, FunctionType, _Cached)) and obj.__module__ in ("__main__", _SPAWNED_MAIN):
            name: str = obj.__qualname__
            if "<locals>" not in name:  # what is inside a class is found by way of that class
                owner = name.partition(".")[0]
                self.of_main.setdefault(owner, getattr(sys.modules["__main__"], owner, obj))
                if name != owner:  # which may be another one: a decorator's, of the same name
                    self.of_main[name] = obj
            if isinstance(obj, _Cached):  # pickle knows these by name only
                return _cached, (obj.__wrapped__, obj.cache_parameters())
        if isinstance(obj, functools.cached_property):  # of Python 3.11 it holds a lock
            return _cached_property, (obj.func, obj.attrname)
        return super().reducer_override(obj)


_Cached: Any = type(functools.cache(len))


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _cached_property(function: Callable[..., Any], name: str) -> Any:
    made = functools.cached_property(function)
    made.__set_name__(object, name)
    return made


def _pickled(*things: Any) -> bytes:
    """Pickle things one after the other, and then what of the main script they need, by name."""
    file = io.BytesIO()
    pickler = _ScriptPickler(file)
    with _main_by_value():
        for thing in things:
            pickler.dump(thing)
        pickler.dump(dict(pickler.of_main))
    return file.getvalue()


def pickle_spec(spec: FeederSpec) -> bytes:
    """Pickle a spec, and what of the main script its loader uses."""
    try:
        return _pickled(spec)
    except Exception as error:
        raise BadSetting(
            f"make_loader cannot be pickled for the feeder's process: {error}. Let it make what it needs "
            "(files, locks, connections) itself, instead of taking it from outside"
        ) from error


def read_spec(file: IO[bytes]) -> FeederSpec:
    """Unpickle a spec, and put what lived in the caller's main script where pickle looks for it."""
    unpickler = pickle.Unpickler(file)
    spec: FeederSpec = unpickler.load()
    sys.argv = spec.argv
    _install(unpickler.load())
    return spec


class _OfMain:
    """Definitions of a main script on their way to a process that starts; unpickling installs them."""

    def __init__(self, of_main: dict[str, Any]) -> None:
        self._of_main = of_main

    def __reduce__(self) -> Any:
        return _unpickle_and_install, (_pickled(self._of_main),)


def _install(of_main: dict[str, Any]) -> None:
    """Put what a main script defines into ``__main__``, here and in each process started from here."""
    main = sys.modules["__main__"]
    for name, thing in of_main.items():
        thing.__module__, thing.__qualname__ = "__main__", name  # a nested class's is not pickled
        if name.isidentifier():
            setattr(main, name, thing)

    prepared = spawn.get_preparation_data

    def with_main(name: str) -> dict[str, Any]:
        """Return what a starting process gets, with our definitions first to be unpickled."""
        return {"penstock": _OfMain(of_main), **prepared(name)}

    spawn.get_preparation_data = with_main


def _unpickle_and_install(pickled: bytes) -> None:
    _install(pickle.loads(pickled))


_registering = threading.Lock()


def _new_lock() -> None:
    global _registering  # noqa: PLW0603  # another thread may have held it when this process was forked
    _registering = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)


@contextmanager
def _main_by_value() -> Generator[None]:
    """Pickle the main script's functions and classes by value also where it is a module that can be imported."""
    spawned = sys.modules.get(_SPAWNED_MAIN)
    if spawned is None:
        yield
        return
    with _registering:
        cloudpickle.register_pickle_by_value(spawned)
        try:
            yield
        finally:
            cloudpickle.unregister_pickle_by_value(spawned)
