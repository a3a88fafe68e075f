"""Whose code a module is: the user's, or a distribution's, of which the version counts."""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from types import FunctionType, ModuleType
from typing import Any

MAIN = ("__main__", "__mp_main__")
_STANDARD = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_INSTALLED = ("site-packages", "dist-packages")


def is_users(module: str) -> bool:
    """Whether a module lies outside of Python's library and of installed packages. Penstock never does."""
    if module in MAIN:
        return True
    found = sys.modules.get(module)
    if module.partition(".")[0] == "penstock" or (found is not None and not getattr(found, "__file__", None)):
        return False
    path = file_of(module)  # what was made by exec has neither module nor file, and is the user's
    return path is None or not in_library(path)


def in_library(path: str) -> bool:
    """Whether a file lies in Python's library, or in an installed package."""
    return path.startswith(_STANDARD) or any(f"/{part}/" in path for part in _INSTALLED)


def file_of(module: str) -> str | None:
    path = getattr(sys.modules.get(module), "__file__", None)
    return os.path.abspath(path) if isinstance(path, str) else None


def text_of(module: str) -> str:
    """Name a module's code: a distribution with its version, a user's module with a digest of its file."""
    if module in MAIN:
        return "__main__"
    if not is_users(module):
        return f"{module} {version_of(module)}"
    path = file_of(module)
    return f"{module} {_file_digest(path, *_changed(path)) if path else ''}"


@lru_cache(maxsize=1024)
def version_of(module: str) -> str:
    """Return the version of the distribution that a module is of; empty if it tells none."""
    top = module.partition(".")[0]
    told: Any = getattr(sys.modules.get(top), "__version__", None)
    if told is None and top not in sys.stdlib_module_names:
        try:
            told = version(top)
        except PackageNotFoundError:
            told = None
    return str(told or "")


def importable(thing: Any) -> bool:
    """Whether a function or class is found again by its module and name."""
    found: Any = sys.modules.get(getattr(thing, "__module__", None) or "")
    for name in getattr(thing, "__qualname__", "").split("."):
        found = getattr(found, name, None) if not isinstance(found, ModuleType) else vars(found).get(name)
    return found is thing


def replaced_by_the_script(kind: type) -> str:
    """Name a method of an installed class, or of its bases, that is a function of the script; empty if none is."""
    for one in kind.__mro__:
        for name, value in () if is_users(one.__module__) else vars(one).items():
            if isinstance(value, FunctionType) and value.__globals__.get("__name__") in MAIN:
                return f"{one.__qualname__}.{name}"
    return ""


def _changed(path: str) -> tuple[int, int]:
    try:
        seen = os.stat(path)
    except OSError:
        return 0, 0
    return seen.st_mtime_ns, seen.st_size


@lru_cache(maxsize=1024)
def _file_digest(path: str, mtime_ns: int, nbytes: int) -> str:
    if not mtime_ns:
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
