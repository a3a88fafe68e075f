"""Code: whose it is, what it looks up and assigns, and what of a class its objects go by."""

from __future__ import annotations

import dis
import hashlib
import os
import re
import sys
import sysconfig
from contextlib import suppress
from functools import cached_property, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast


def defaults_of(function: FunctionType) -> dict[str, Any]:
    """Return the default values of a function's arguments, by name."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    return {**dict(zip(names, defaults, strict=True)), **(function.__kwdefaults__ or {})}


def closure_of(function: FunctionType) -> dict[str, Any]:
    """Return what a function's closure holds, by name."""
    held: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it is empty
            held[name] = cell.cell_contents
    return held


@lru_cache(maxsize=4096)
def read_by(code: CodeType, local: str | None = None) -> list[list[str]]:
    """List what a function's code, and the functions inside it, look up, such as ``args.model.depth``.

    These are names from outside, or the attributes of one local variable. ``config["size"]`` ends in ``[size``.
    """
    found: list[list[str]] = []
    follows, key = False, ""
    for instruction in dis.get_instructions(code):
        operation: str = instruction.opname
        argument: Any = instruction.argval
        outside = operation in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF")
        if outside or "LOAD_FAST" in operation:
            name: str = argument if isinstance(argument, str) else argument[-1]  # of two, the last is on top
            follows, key = name == local if local else outside, ""
            if follows:
                found.append([name])
        elif follows and operation in ("LOAD_ATTR", "LOAD_METHOD"):
            found[-1].append(argument)
        elif follows and operation == "LOAD_CONST" and isinstance(argument, str):
            key = argument
        elif follows and key and (operation == "BINARY_SUBSCR" or instruction.argrepr == "[]"):
            found[-1].append(f"[{key}")
            key = ""
        elif operation != "CACHE":
            follows, key = False, ""
    return found + [path for inner in _inner(code) for path in read_by(inner, local)]


def imported_by(code: CodeType) -> list[tuple[str, list[str]]]:
    """List what a function's code reads of modules that it imports when it runs, such as ``["augment", "SIZE"]``.

    Each has the module's name before it, with dots if it is relative.
    """
    found: list[tuple[str, list[str]]] = []
    instructions = list(dis.get_instructions(code))
    for i, one in enumerate(instructions):
        if one.opname == "IMPORT_NAME":
            level, names = instructions[i - 2].argval, instructions[i - 1].argval
            module = "." * level + one.argval
            if names:
                found += [(module, [one.argval, name]) for name in names]
            else:  # import a.b binds a, and import a.b as c what is found from there on
                stored = next(each for each in instructions[i + 1 :] if each.opname.startswith("STORE_"))
                renamed = instructions[i + 1].opname == "IMPORT_FROM"
                bound = module if renamed else module.partition(".")[0]
                found += [(bound, path) for path in read_by(code, stored.argval)]
    return found + [each for inner in _inner(code) for each in imported_by(inner)]


def words_of(code: CodeType) -> set[str]:
    """Return the texts in a function's code that may name something, such as a variable of the environment."""
    found = {word for inner in _inner(code) for word in words_of(inner)}
    for const in code.co_consts:
        for each in cast("tuple[Any, ...]", const) if isinstance(const, (tuple, frozenset)) else (const,):
            text: Any = each.decode(errors="replace") if isinstance(each, bytes) else each
            if isinstance(text, str):
                found.update([text] if len(text) < 100 and _NAME.fullmatch(text) else _VARIABLE.findall(text))
    return found


_NAME = re.compile(r"[\w.]+")
_VARIABLE = re.compile(r"\$\{?(\w+)")


def names_of(code: CodeType) -> set[str]:
    """Return all names that a function's code looks up, of whatever."""
    return {*code.co_names}.union(*map(names_of, _inner(code)))


def builds_text(code: CodeType, also_by_sum: bool) -> bool:
    """Whether a function's code may put texts together."""
    found = {one.opname for one in dis.get_instructions(code)}
    return bool(
        "BUILD_STRING" in found
        or (also_by_sum and "BINARY_OP" in found)
        or {"format", "join", "startswith", "endswith", "upper", "expandvars"} & names_of(code)
        or any(builds_text(inner, also_by_sum) for inner in _inner(code))
    )


def _inner(code: CodeType) -> list[CodeType]:
    return [const for const in code.co_consts if isinstance(const, CodeType)]


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
    """Return the version of a module's distribution; empty if it has none."""
    top = module.partition(".")[0]
    found: Any = getattr(sys.modules.get(top), "__version__", None)
    if found is None and top not in sys.stdlib_module_names:
        try:
            found = version(top)
        except PackageNotFoundError:
            found = None
    return str(found or "")


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


def name_of(kind: type) -> str:
    """Return a class's name; of one that a function makes, what is left of it on its way to another process."""
    return kind.__name__ if "<locals>" in kind.__qualname__ else kind.__qualname__


@lru_cache(maxsize=4096)
def is_or_inherits(kind: type, name: str) -> bool:
    return any(f"{one.__module__}.{one.__qualname__}" == name for one in kind.__mro__)


@lru_cache(maxsize=1024)
def not_counted(kind: type) -> frozenset[str]:
    """List attributes that only caches fill."""
    files = {file_of(one.__module__) or "" for one in kind.__mro__ if is_users(one.__module__)}
    masked = {
        name for one in kind.__mro__ for name, value in vars(one).items() if isinstance(value, cached_property)
    }
    if masked:  # a value that a program gives is none that was computed
        masked -= assigned_in(*sys.argv[:1], *files)
    if is_or_inherits(kind, "transformers.tokenization_utils_base.PreTrainedTokenizerBase"):
        masked |= {"cache", "deprecation_warnings"}
    return frozenset(masked)
