"""The function that ``FILE.py:FUNCTION`` names on the command line."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.errors import BadSetting


def function_at(where: str) -> Callable[[], Any]:
    """Run the file, and give its function.

    Raises:
        BadSetting: there is no such file or function; the message says what there is.
    """
    path, _, function = where.rpartition(":")
    if not path or not function.isidentifier():
        raise BadSetting(f"{where!r} names no function: write FILE.py:FUNCTION, such as train.py:make_loader")
    module = _module(Path(path))
    make = getattr(module, function, None)
    if not callable(make):
        named = sorted(
            name for name, thing in vars(module).items() if callable(thing) and thing.__module__ == module.__name__
        )
        raise BadSetting(f"{path} has no function {function!r}; it has: {', '.join(named) or 'none'}")
    return make


def _module(path: Path) -> ModuleType:
    if not path.is_file():
        raise BadSetting(f"there is no file {path}")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise BadSetting(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # workers find the dataset's class by this name
    spec.loader.exec_module(module)
    return module
