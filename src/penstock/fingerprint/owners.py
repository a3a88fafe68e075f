"""Whose code a module is: the user's, or a distribution's, of which the version counts."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import sysconfig
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
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
    path = file_of(module) or ""
    with suppress(OSError):  # it has no file, or none any more
        seen = os.stat(path)
        return f"{module} {_file_digest(path, seen.st_mtime_ns, seen.st_size)}"
    return f"{module} "


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


_ASSIGNED = re.compile(r"""\.(\w+)\s*[-+*/|&]?=(?!=)|setattr\(.*?["'](\w+)["']|\[["'](\w+)["']\]\s*=(?!=)""")


def assigned_in(*files: str) -> set[str]:
    """Return the attributes and items that programs' texts assign."""
    found: set[str] = set()
    for file in files:
        with suppress(OSError, ValueError):
            text = Path(file).read_text(errors="replace")
            found.update(name for names in _ASSIGNED.findall(text) for name in names if name)
    return found


@lru_cache(maxsize=1024)
def _file_digest(path: str, mtime_ns: int, nbytes: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
