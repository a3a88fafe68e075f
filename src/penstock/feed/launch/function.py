"""The function that makes a feed's loader, as given or as ``FILE.py:FUNCTION`` on the command line."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from penstock.basics.packages import require
from penstock.basics.tracebacks import users_traceback
from penstock.errors import BadSetting, PenstockError


class FunctionFailed(Exception):
    """The user's own code raised."""

    def __init__(self, message: str, traceback_text: str) -> None:
        super().__init__(message)
        self.traceback_text = traceback_text  # the traceback, from the user's file on


def function_at(where: str) -> Callable[[], Any]:
    """Run ``FILE.py`` and return its function."""
    path, _, function = where.rpartition(":")
    if not path or not function.isidentifier():
        raise BadSetting(f"{where!r} names no function: write FILE.py:FUNCTION, such as train.py:make_loader")
    module = _module(Path(path))
    make = getattr(module, function, None)
    if make is not None and not callable(make):
        raise BadSetting(f"{function!r} in {path} is not a function, but a value of type {type(make).__name__}")
    if make is None:
        named = sorted(
            name for name, thing in vars(module).items() if callable(thing) and thing.__module__ == module.__name__
        )
        raise BadSetting(f"{path} has no function {function!r}; it has: {', '.join(named) or 'none'}")
    if needs := missing_arguments(make):
        raise BadSetting(
            f"{where} is called without arguments, and needs some ({needs}): give them defaults, or name a "
            "function that takes none"
        )
    return make


def call(make: Callable[[], Any], where: str) -> Any:
    """Call a function that was found at ``where``."""
    path, _, function = where.rpartition(":")
    with users_code(f"{function}() in {path}"):
        return make()


def missing_arguments(function: Callable[..., Any]) -> str:
    """Return which arguments a function requires, in Python's words; empty if none."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some built-in callables have none
        return ""
    try:
        signature.bind()
    except TypeError as error:
        return str(error)
    return ""


@contextmanager
def users_code(what: str) -> Generator[None]:
    """Run code of the user's."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            require(what, "torch", "torch")
        raise FunctionFailed(f"{what} raised {type(error).__name__}: {error}", users_traceback(error)) from error


class _AsItIsNow(SourceFileLoader):
    """Compiles the file itself: cached bytecode goes by size and second, so a quick edit can leave it stale."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _module(path: Path) -> ModuleType:
    if not path.is_file():
        meant = path.with_name(path.name + ".py")
        raise BadSetting(f"there is no file {path}" + (f"; did you mean {meant}?" if meant.is_file() else ""))
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise BadSetting(f"{path} is no Python file")
    if isinstance(spec.loader, SourceFileLoader):
        spec.loader = _AsItIsNow(path.stem, spec.loader.path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # workers find the dataset's class by this name
    with users_code(str(path)):
        spec.loader.exec_module(module)
    return module
