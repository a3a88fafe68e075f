"""A fingerprint of ``make_loader``, so that an edited one is not taken for the one that feeds."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType
from typing import Any, cast

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def recipe_of(make_loader: Callable[[], Any]) -> str:
    """A fingerprint of a function's code and of what it uses from its own module.

    That is: functions and classes of that module, and numbers, strings and
    paths, be they constants, globals, defaults, or held by a closure or a
    partial. What it imports, and objects that it holds, do not count, nor
    do comments. Fingerprints of two versions of Python cannot be compared, so
    each begins with its own.
    """
    digest = hashlib.sha256()
    for part in _parts(make_loader, getattr(_function(make_loader), "__module__", None), set()):
        digest.update(part.encode(errors="surrogatepass") + b"\0")
    return f"{sys.version_info.major}.{sys.version_info.minor} {digest.hexdigest()[:16]}"


def same_recipe(one: str, other: str) -> bool:
    """Whether two fingerprints may be of the same function; an empty one is of none."""
    return one == other or one.partition(" ")[0] != other.partition(" ")[0]


def _function(thing: Any) -> Any:
    while isinstance(thing, partial):
        thing = cast("partial[Any]", thing).func
    return thing


def _parts(thing: Any, module: str | None, seen: set[int]) -> Iterator[str]:
    """What tells this thing from others, in a fixed order."""
    if type(thing) in _PLAIN or isinstance(thing, PurePath):
        yield repr(thing)
    elif isinstance(thing, (tuple, list, set, frozenset)):
        kind: str = type(cast("object", thing)).__name__
        items = [list(_parts(item, module, seen)) for item in cast("tuple[Any]", thing)]
        yield f"{kind} {sorted(items) if kind in ('set', 'frozenset') else items}"
    elif isinstance(thing, dict):
        for key, value in cast("dict[Any, Any]", thing).items():
            yield from (*_parts(key, module, seen), *_parts(value, module, seen))
    elif id(thing) not in seen:
        seen.add(id(thing))
        yield from _parts_of_code(thing, module, seen)


def _parts_of_code(thing: Any, module: str | None, seen: set[int]) -> Iterator[str]:
    if isinstance(thing, partial):
        held = cast("partial[Any]", thing)
        yield from _parts((held.func, held.args, held.keywords), module, seen)
    elif isinstance(thing, MethodType):
        yield from _parts(thing.__func__, module, seen)
    elif isinstance(thing, CodeType):
        yield thing.co_code.hex()
        yield from _parts((thing.co_names, thing.co_consts), module, seen)
    elif getattr(thing, "__module__", None) != module:
        return
    elif isinstance(thing, FunctionType):
        yield from _parts((thing.__code__, thing.__defaults__, thing.__kwdefaults__), module, seen)
        for name in _names(thing.__code__):
            yield from _parts(thing.__globals__.get(name), module, seen)
        for cell in thing.__closure__ or ():
            try:
                yield from _parts(cell.cell_contents, module, seen)
            except ValueError:  # not filled yet
                continue
    elif isinstance(thing, type):
        for name, value in sorted(vars(thing).items()):
            if name not in ("__doc__", "__module__", "__firstlineno__", "__static_attributes__"):
                yield name
                yield from _parts(value, module, seen)


def _names(code: CodeType) -> list[str]:
    """The names that a function's code looks up, and that of the functions inside it."""
    inner = [name for const in code.co_consts if isinstance(const, CodeType) for name in _names(const)]
    return [*code.co_names, *inner]
